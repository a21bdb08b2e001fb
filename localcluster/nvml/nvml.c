/* A stand-in for NVIDIA's libnvidia-ml.so.1, driven by a text file.
 *
 * Every call reads the file named by NVML_STANDIN_STATE again, or /run/nvml-standin/state where that
 * is not set, so a test changes the machine by replacing the file. One line a thing, tab-separated words, the first says what it is:
 *
 *   driver  init=<code> delay_ms=<n> version=<text>
 *           fail=<function>:<code>   that function fails so, for every card; may stand repeatedly
 *   card    uuid=<text> minor=<n> mem_mib=<n> reserved_mib=<n> model=<text> ...
 *           mig=0|1          MIG mode on
 *           memory_v2=0      an older driver: no version 2 of the memory query
 *           error=<code>     whatever asks the card itself fails so; what is known without it does not
 *           handle_error=<code>  already finding the card fails so
 *           memory=<code>    asking how much memory it has fails so
 *           recovery=<n>     the recovery action that the driver advises
 *           recovery_supported=0   an older driver: it advises nothing
 *           rows_failed=1    rows of its memory could not be remapped
 *           rows_pending=1, pages_pending=1   a repair of its memory waits for a reset
 *           uncorrected=<n>  errors of its memory since the driver was loaded
 *           failing=<function>   that function fails for this card with "Unknown Error"
 *           events=0         its events cannot be registered
 *           hangs=1          a call for it does not return before the file says otherwise
 *   process uuid=<text> pid=<n> used_mib=<n> graphics=0|1   used_mib=-1: not told
 *           code=<code>      asking for the processes of that card fails so
 *   sample  uuid=<text> pid=<n> at_us=<n> sm=<n>   percent of the card's processors that a process used
 *   event   seq=<n> uuid=<text> type=<n> data=<n>   numbered upwards from 1
 *   end
 *
 * A file without its last line is in the middle of a write: what was there before still holds. Events
 * from before a set was created are not delivered to it, as by the real one.
 *
 * Functions that are not here are absent, as in a driver too old to have them. With MEMORY_LIMITS
 * defined the library also has those that limit a cgroup's memory, as since R615. The limits are in
 * the file `limits` beside the state file: each Set adds a line, the last of a card and cgroup holds.
 * Signatures and codes follow NVIDIA's public nvml.h; nothing else of it is needed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    OK = 0, UNINITIALIZED = 1, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7,
    NO_DRIVER = 9, TIMEOUT = 10, LOST = 15, BAD_VERSION = 25, UNKNOWN = 999,
};
enum {
    MAX_CARDS = 64, MAX_SLOTS = 256, MAX_FAILS = 8, TEXT = 96, LINE = 1024, RECOVERY_ACTION = 230,
    MIB = 1 << 20, HANG_MS = 20, EVENT_TYPES = 0x8 | 0x100 | 0x4000 | 0x8000,
};

typedef struct {
    char uuid[TEXT], model[TEXT], failing[TEXT];
    unsigned minor, mig, memory_v2, recovery, recovery_supported, rows_failed, events, hangs;
    unsigned rows_pending, pages_pending;
    unsigned long long mem_mib, reserved_mib, uncorrected;
    int error, handle_error, memory;
} Card;

typedef struct { char function[TEXT]; int code; } Fail;

typedef struct {
    int init;
    unsigned delay_ms, count, fail_count;
    unsigned long long last_event;
    char version[TEXT];
    Fail fails[MAX_FAILS];
    Card cards[MAX_CARDS];
} State;

typedef struct { void *device; unsigned long long type, data; unsigned gi, ci; } EventData;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } ProcessInfo;
typedef struct { unsigned pid; unsigned long long at_us; unsigned sm, mem, enc, dec; } Sample;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} PciInfo;
typedef struct {
    unsigned field, scope;
    long long timestamp, latency_us;
    int type, result;
    union { double d; unsigned ui; unsigned long long ull; } value;
} FieldValue;
typedef struct { unsigned long long last, types[MAX_SLOTS]; } EventSet;

static __thread State state;
static char slots[MAX_SLOTS][TEXT]; /* a handle is a slot: it means one UUID for ever */
static int users;

static void pause_ms(unsigned ms)
{
    struct timespec span = { ms / 1000, (long)(ms % 1000) * 1000000 };
    nanosleep(&span, NULL);
}

static void take(int *lock)
{
    while (__sync_lock_test_and_set(lock, 1)) pause_ms(1);
}

static const char *word(char *line, const char *key)
{
    static __thread char found[TEXT];
    size_t length = strlen(key);
    for (char *at = strchr(line, '\t'); at; at = strchr(at, '\t')) {
        at++;
        if (strncmp(at, key, length) == 0 && at[length] == '=') {
            size_t end = strcspn(at + length + 1, "\t\n");
            if (end >= TEXT) end = TEXT - 1;
            memcpy(found, at + length + 1, end);
            found[end] = 0;
            return found;
        }
    }
    return NULL;
}

static unsigned long long number(char *line, const char *key, unsigned long long absent)
{
    const char *text = word(line, key);
    return text ? strtoull(text, NULL, 0) : absent;
}

static void text(char *into, char *line, const char *key, const char *absent)
{
    const char *found = word(line, key);
    snprintf(into, TEXT, "%s", found ? found : absent);
}

static FILE *open_state(void)
{
    const char *path = getenv("NVML_STANDIN_STATE");
    return fopen(path ? path : "/run/nvml-standin/state", "re");
}

/* Read the next line of a kind about a card into `line`, which has room for LINE; 0 at the end. */
static int next_line(const char *kind, const Card *card, FILE *file, char *line)
{
    while (file && fgets(line, LINE, file)) {
        const char *uuid = word(line, "uuid");
        if (!strncmp(line, kind, strlen(kind)) && uuid && !strcmp(uuid, card->uuid)) return 1;
    }
    return 0;
}

static void read_fails(char *line)
{
    for (char *at = strstr(line, "\tfail="); at; at = strstr(at + 1, "\tfail=")) {
        Fail fail = { "", 0 };
        if (sscanf(at + 6, "%95[^:\t\n]:%d", fail.function, &fail.code) == 2
            && state.fail_count < MAX_FAILS)
            state.fails[state.fail_count++] = fail;
    }
}

static void read_card(char *line, Card *card)
{
    text(card->uuid, line, "uuid", "");
    text(card->model, line, "model", "NVIDIA Stand-in");
    card->minor = (unsigned)number(line, "minor", state.count);
    card->mem_mib = number(line, "mem_mib", 0);
    card->reserved_mib = number(line, "reserved_mib", 0);
    card->mig = (unsigned)number(line, "mig", 0);
    card->memory_v2 = (unsigned)number(line, "memory_v2", 1);
    card->memory = (int)number(line, "memory", 0);
    card->recovery = (unsigned)number(line, "recovery", 0);
    card->recovery_supported = (unsigned)number(line, "recovery_supported", 1);
    card->rows_failed = (unsigned)number(line, "rows_failed", 0);
    card->rows_pending = (unsigned)number(line, "rows_pending", 0);
    card->pages_pending = (unsigned)number(line, "pages_pending", 0);
    card->uncorrected = number(line, "uncorrected", 0);
    text(card->failing, line, "failing", "");
    card->events = (unsigned)number(line, "events", 1);
    card->hangs = (unsigned)number(line, "hangs", 0);
    card->error = (int)number(line, "error", 0);
    card->handle_error = (int)number(line, "handle_error", 0);
}

/* The state as it is now, after the delay it asks for; a code other than OK if there is no driver. */
static int look(void)
{
    static State complete = { .init = NO_DRIVER };
    static int lock;
    char line[LINE];
    int ended = 0;
    FILE *file = open_state();
    memset(&state, 0, sizeof state);
    if (!file) return NO_DRIVER;
    while (fgets(line, sizeof line, file)) {
        if (strncmp(line, "driver\t", 7) == 0) {
            state.init = (int)number(line, "init", 0);
            state.delay_ms = (unsigned)number(line, "delay_ms", 0);
            text(state.version, line, "version", "");
            read_fails(line);
        } else if (strncmp(line, "card\t", 5) == 0 && state.count < MAX_CARDS) {
            read_card(line, &state.cards[state.count]);
            state.count++;
        } else if (strncmp(line, "event\t", 6) == 0) {
            state.last_event = number(line, "seq", 0);
        } else if (strcmp(line, "end\n") == 0) {
            ended = 1;
        }
    }
    fclose(file);
    take(&lock);
    if (ended) complete = state;
    else state = complete;
    __sync_lock_release(&lock);
    if (state.delay_ms) pause_ms(state.delay_ms);
    return state.init;
}

static int ready_for(const char *function)
{
    int code = users > 0 ? look() : UNINITIALIZED;
    for (unsigned i = 0; !code && i < state.fail_count; i++)
        if (strcmp(state.fails[i].function, function) == 0) code = state.fails[i].code;
    return code;
}

#define ready() ready_for(__func__)

static void *handle_of(const char *uuid)
{
    static int lock;
    void *handle = NULL;
    take(&lock);
    for (long slot = 0; slot < MAX_SLOTS && !handle; slot++) {
        if (!slots[slot][0]) snprintf(slots[slot], TEXT, "%s", uuid);
        if (strcmp(slots[slot], uuid) == 0) handle = (void *)(slot + 1);
    }
    __sync_lock_release(&lock);
    return handle;
}

/* The card that a handle means; its own error only if `asked` (the call needs the card to answer). */
static int card_for(const char *function, void *handle, int asked, Card **card)
{
    long slot = (long)handle - 1;
    for (;; pause_ms(HANG_MS)) {
        int code = ready_for(function);
        if (code) return code;
        if (slot < 0 || slot >= MAX_SLOTS || !slots[slot][0]) return INVALID;
        *card = NULL;
        for (unsigned i = 0; i < state.count && !*card; i++)
            if (strcmp(state.cards[i].uuid, slots[slot]) == 0) *card = &state.cards[i];
        if (!*card) return LOST;
        if (strcmp((*card)->failing, function) == 0) return UNKNOWN;
        if (!(*card)->hangs) return asked ? (*card)->error : OK;
    }
}

#define card_of(handle, asked, card) card_for(__func__, handle, asked, card)

static int copy(const char *from, char *into, unsigned length)
{
    if (strlen(from) >= length) return TOO_SMALL;
    strcpy(into, from);
    return OK;
}

int nvmlInitWithFlags(unsigned flags)
{
    int code = look();
    (void)flags;
    if (!code) __sync_fetch_and_add(&users, 1);
    return code;
}

int nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

int nvmlShutdown(void)
{
    if (users < 1) return UNINITIALIZED;
    __sync_fetch_and_sub(&users, 1);
    return OK;
}

const char *nvmlErrorString(int code)
{
    switch (code) {
    case OK: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case NO_DRIVER: return "Driver Not Loaded";
    case TIMEOUT: return "Timeout";
    case LOST: return "GPU is lost";
    case 16: return "GPU requires reset";
    case 18: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

int nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    int code = ready();
    return code ? code : copy(state.version, version, length);
}

int nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    int code = ready();
    return code ? code : copy(state.version, version, length);
}

int nvmlSystemGetCudaDriverVersion(int *version)
{
    int code = ready();
    *version = 13000;
    return code;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    return nvmlSystemGetCudaDriverVersion(version);
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    int code = ready();
    *count = state.count;
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle)
{
    for (;; pause_ms(HANG_MS)) {
        int code = ready();
        if (code) return code;
        if (index >= state.count) return INVALID;
        *handle = handle_of(state.cards[index].uuid);
        if (!state.cards[index].hangs) return state.cards[index].handle_error;
    }
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle)
{
    int code = ready();
    for (unsigned i = 0; !code && i < state.count; i++) {
        if (strcmp(state.cards[i].uuid, uuid) == 0) {
            *handle = handle_of(uuid);
            return state.cards[i].handle_error;
        }
    }
    return code ? code : NOT_FOUND;
}

int nvmlDeviceGetName(void *handle, char *name, unsigned length)
{
    Card *card;
    int code = card_of(handle, 0, &card);
    return code ? code : copy(card->model, name, length);
}

int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned length)
{
    Card *card;
    int code = card_of(handle, 0, &card);
    return code ? code : copy(card->uuid, uuid, length);
}

int nvmlDeviceGetMinorNumber(void *handle, unsigned *minor)
{
    Card *card;
    int code = card_of(handle, 0, &card);
    if (!code) *minor = card->minor;
    return code;
}

int nvmlDeviceGetIndex(void *handle, unsigned *index)
{
    Card *card;
    int code = card_of(handle, 0, &card);
    if (!code) *index = (unsigned)(card - state.cards);
    return code;
}

int nvmlDeviceGetMemoryInfo(void *handle, Memory *memory)
{
    Card *card;
    int code = card_of(handle, 1, &card);
    if (!code) code = card->memory;
    if (code) return code;
    memory->total = card->mem_mib * MIB;
    memory->used = card->reserved_mib * MIB; /* version 1 counts the driver's own as used */
    memory->free = memory->total - memory->used;
    return OK;
}

int nvmlDeviceGetMemoryInfo_v2(void *handle, Memory2 *memory)
{
    Card *card;
    int code = card_of(handle, 1, &card);
    if (!code) code = card->memory;
    if (code) return code;
    if (!card->memory_v2) return NOT_SUPPORTED;
    if (memory->version != (2u << 24 | sizeof *memory)) return BAD_VERSION;
    memory->total = card->mem_mib * MIB;
    memory->reserved = card->reserved_mib * MIB;
    memory->used = 0;
    memory->free = memory->total - memory->reserved;
    return OK;
}

int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending)
{
    Card *card;
    int code = card_of(handle, 1, &card);
    if (!code) *current = *pending = card->mig;
    return code;
}

int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count)
{
    Card *card;
    int code = card_of(handle, 0, &card);
    *count = !code && card->mig ? 7 : 0;
    return code;
}

int nvmlDeviceIsMigDeviceHandle(void *handle, unsigned *is_mig)
{
    Card *card;
    *is_mig = 0;
    return card_of(handle, 0, &card);
}

/* What NVIDIA's toolkit asks beside: a card of the data center brand and of the Hopper architecture. */
int nvmlDeviceGetBrand(void *handle, int *brand)
{
    Card *card;
    *brand = 2;
    return card_of(handle, 0, &card);
}

int nvmlDeviceGetArchitecture(void *handle, unsigned *architecture)
{
    Card *card;
    *architecture = 9;
    return card_of(handle, 0, &card);
}

int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor)
{
    Card *card;
    *major = 9;
    *minor = 0;
    return card_of(handle, 0, &card);
}

int nvmlDeviceGetPciInfo_v3(void *handle, PciInfo *pci)
{
    Card *card;
    int code = card_of(handle, 0, &card);
    if (code) return code;
    memset(pci, 0, sizeof *pci);
    pci->bus = card->minor + 1;
    snprintf(pci->bus_id_legacy, sizeof pci->bus_id_legacy, "0000:%02X:00.0", pci->bus & 0xff);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus & 0xff);
    return OK;
}

int nvmlDeviceGetFieldValues(void *handle, int count, FieldValue *values)
{
    Card *card;
    int code = card_of(handle, 1, &card);
    for (int i = 0; !code && i < count; i++) {
        int is_known = values[i].field == RECOVERY_ACTION && card->recovery_supported;
        values[i].result = is_known ? OK : NOT_SUPPORTED;
        values[i].type = 1; /* unsigned int */
        values[i].value.ui = card->recovery;
    }
    return code;
}

int nvmlDeviceGetRemappedRows(void *handle, unsigned *correctable, unsigned *uncorrectable,
                              unsigned *pending, unsigned *failed)
{
    Card *card;
    int code = card_of(handle, 1, &card);
    if (code) return code;
    *correctable = *uncorrectable = 0;
    *pending = card->rows_pending;
    *failed = card->rows_failed;
    return OK;
}

int nvmlDeviceGetRetiredPagesPendingStatus(void *handle, unsigned *pending)
{
    Card *card;
    int code = card_of(handle, 1, &card);
    if (!code) *pending = card->pages_pending;
    return code;
}

int nvmlDeviceGetTotalEccErrors(void *handle, int type, int counter, unsigned long long *count)
{
    Card *card;
    int code = card_of(handle, 1, &card);
    int is_counted = type == 1 && counter == 0; /* uncorrected, since the driver was loaded */
    if (!code) *count = is_counted ? card->uncorrected : 0;
    return code;
}

#ifdef MEMORY_LIMITS
#include <errno.h>
#include <limits.h>
#include <sys/stat.h>

enum { NO_PERMISSION = 4, OPERATING_SYSTEM = 17, ROW = PATH_MAX + 4 * TEXT };

typedef struct { const char *cgroup; unsigned long long soft, hard, used; } Limits; /* Set: no `used` */
typedef struct { unsigned long long number; char path[PATH_MAX]; } Cgroup;

/* A cgroup by its folder. Its number is the kernel's, in every mount the same and never used again.
 * Its path is the one below the root of the mount that has the folder. */
static int cgroup_of(const char *folder, Cgroup *found)
{
    char full[PATH_MAX];
    struct stat own, above;
    if (!folder || !realpath(folder, full) || stat(full, &own) || !S_ISDIR(own.st_mode))
        return OPERATING_SYSTEM;
    char *root = full + strlen(full), above_root[PATH_MAX];
    while (root > full) {
        char *slash = root - 1;
        while (*slash != '/') slash--;
        snprintf(above_root, sizeof above_root, "%.*s", slash > full ? (int)(slash - full) : 1, full);
        if (stat(above_root, &above) || above.st_dev != own.st_dev) break;
        root = slash;
    }
    found->number = own.st_ino;
    snprintf(found->path, sizeof found->path, "%s", *root ? root : "/");
    return OK;
}

static FILE *open_limits(const char *mode)
{
    char path[PATH_MAX];
    const char *state_path = getenv("NVML_STANDIN_STATE");
    if (!state_path) state_path = "/run/nvml-standin/state";
    const char *slash = strrchr(state_path, '/');
    int length = slash ? (int)(slash + 1 - state_path) : 0;
    snprintf(path, sizeof path, "%.*slimits", length, state_path);
    return fopen(path, mode);
}

static int may_be_limited(const char *function, void *handle, const char *folder, Card **card,
                          Cgroup *cgroup)
{
    int code = card_for(function, handle, 1, card);
    if (!code && (*card)->mig) code = NOT_SUPPORTED;
    return code ? code : cgroup_of(folder, cgroup);
}

int nvmlDeviceSetMemoryLimits_v1(void *handle, Limits *limits)
{
    Card *card;
    Cgroup cgroup;
    unsigned long long most = ~0ull;
    int code = may_be_limited(__func__, handle, limits->cgroup, &card, &cgroup);
    if (code) return code;
    if (limits->hard != most) most = card->mem_mib * MIB;
    if (limits->soft > limits->hard || limits->hard > most) return INVALID;
    if (limits->soft > card->mem_mib * MIB) return INVALID;
    FILE *table = open_limits("ae");
    if (!table) return errno == EACCES || errno == EROFS ? NO_PERMISSION : UNKNOWN;
    /* One write at the end of the file, so that processes do not lose each other's rows. */
    fprintf(table, "%s\t%llu\t%llu\t%llu\t%s\n", card->uuid, cgroup.number, limits->soft,
            limits->hard, cgroup.path);
    return fclose(table) ? UNKNOWN : OK;
}

static int is_in(unsigned pid, const char *cgroup)
{
    char path[64], line[PATH_MAX + 8];
    size_t length = strcmp(cgroup, "/") ? strlen(cgroup) : 0;
    int found = 0;
    snprintf(path, sizeof path, "/proc/%u/cgroup", pid);
    FILE *file = fopen(path, "re");
    while (file && !found && fgets(line, sizeof line, file))
        found = !strncmp(line, "0::", 3) && !strncmp(line + 3, cgroup, length)
                && (line[3 + length] == '/' || line[3 + length] == '\n');
    if (file) fclose(file);
    return found;
}

/* What the processes of a cgroup, and of those below it, use of a card. */
static unsigned long long used_in(const Card *card, const char *cgroup)
{
    char line[LINE];
    unsigned long long sum = 0;
    FILE *file = open_state();
    while (next_line("process\t", card, file, line)) {
        long long mib = (long long)number(line, "used_mib", 0);
        if (mib > 0 && is_in((unsigned)number(line, "pid", 0), cgroup))
            sum += (unsigned long long)mib * MIB;
    }
    if (file) fclose(file);
    return sum;
}

int nvmlDeviceGetMemoryLimits_v1(void *handle, Limits *limits)
{
    Card *card;
    Cgroup cgroup;
    char line[ROW], uuid[TEXT];
    unsigned long long cgroup_number, soft, hard;
    int code = may_be_limited(__func__, handle, limits->cgroup, &card, &cgroup);
    if (code) return code;
    limits->soft = 0;
    limits->hard = ~0ull;
    limits->used = used_in(card, cgroup.path);
    FILE *table = open_limits("re");
    while (table && fgets(line, sizeof line, table)) {
        if (sscanf(line, "%95s %llu %llu %llu ", uuid, &cgroup_number, &soft, &hard) != 4) continue;
        if (cgroup_number != cgroup.number || strcmp(uuid, card->uuid) != 0) continue;
        limits->soft = soft;
        limits->hard = hard;
    }
    if (table) fclose(table);
    return OK;
}
#endif

int nvmlEventSetCreate(void **set)
{
    int code = ready();
    if (code) return code;
    EventSet *made = calloc(1, sizeof *made);
    if (made) made->last = state.last_event;
    *set = made;
    return OK;
}

int nvmlEventSetFree(void *set)
{
    free(set);
    return OK;
}

int nvmlDeviceGetSupportedEventTypes(void *handle, unsigned long long *types)
{
    Card *card;
    int code = card_of(handle, 1, &card);
    if (!code) *types = card->events ? EVENT_TYPES : 0;
    return code;
}

int nvmlDeviceRegisterEvents(void *handle, unsigned long long types, void *set)
{
    Card *card;
    int code = card_of(handle, 1, &card);
    if (!code && !card->events) code = NOT_SUPPORTED;
    if (!code) ((EventSet *)set)->types[(long)handle - 1] |= types;
    return code;
}

static int next_event(EventSet *set, EventData *data)
{
    char line[LINE];
    int found = 0;
    FILE *file = open_state();
    while (file && !found && fgets(line, sizeof line, file)) {
        unsigned long long seq = number(line, "seq", 0);
        if (strncmp(line, "event\t", 6) != 0 || !strchr(line, '\n') || seq <= set->last) continue;
        set->last = seq;
        memset(data, 0, sizeof *data);
        data->type = number(line, "type", 0);
        data->data = number(line, "data", 0);
        data->gi = data->ci = ~0u;
        char uuid[TEXT];
        text(uuid, line, "uuid", "");
        data->device = handle_of(uuid);
        found = data->device && (set->types[(long)data->device - 1] & data->type);
    }
    if (file) fclose(file);
    return found;
}

int nvmlEventSetWait_v2(void *set, EventData *data, unsigned timeout_ms)
{
    for (unsigned waited = 0;; waited += 10) {
        int code = ready();
        if (code) return code;
        if (next_event(set, data)) return OK;
        if (waited >= timeout_ms) return TIMEOUT;
        pause_ms(10);
    }
}

/* As NVML has it: without room for all, how many there are, and a code that says so. */
static int processes_of(void *handle, unsigned graphics, unsigned *count, ProcessInfo *infos)
{
    Card *card;
    char line[LINE];
    unsigned found = 0, room = infos ? *count : 0;
    int code = card_of(handle, 1, &card);
    if (code) return code;
    FILE *file = open_state();
    while (next_line("process\t", card, file, line)) {
        code = (int)number(line, "code", 0);
        if (code) break;
        if (number(line, "graphics", 0) != graphics) continue;
        if (found < room) {
            long long mib = (long long)number(line, "used_mib", 0);
            infos[found].pid = (unsigned)number(line, "pid", 0);
            infos[found].used = mib < 0 ? ~0ull : (unsigned long long)mib * MIB;
            infos[found].gi = infos[found].ci = ~0u;
        }
        found++;
    }
    if (file) fclose(file);
    if (code) return code;
    *count = found;
    return found > room ? TOO_SMALL : OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, ProcessInfo *infos)
{
    return processes_of(handle, 0, count, infos);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, ProcessInfo *infos)
{
    return processes_of(handle, 1, count, infos);
}

int nvmlDeviceGetProcessUtilization(void *handle, Sample *samples, unsigned *count,
                                    unsigned long long after_us)
{
    Card *card;
    char line[LINE];
    unsigned found = 0, room = samples ? *count : 0;
    int code = card_of(handle, 1, &card);
    if (code) return code;
    FILE *file = open_state();
    while (next_line("sample\t", card, file, line)) {
        unsigned long long at_us = number(line, "at_us", 0);
        if (at_us <= after_us) continue;
        if (found < room) {
            memset(&samples[found], 0, sizeof *samples);
            samples[found].pid = (unsigned)number(line, "pid", 0);
            samples[found].at_us = at_us;
            samples[found].sm = (unsigned)number(line, "sm", 0);
        }
        found++;
    }
    if (file) fclose(file);
    *count = found;
    if (!found) return NOT_FOUND;
    return found > room ? TOO_SMALL : OK;
}
