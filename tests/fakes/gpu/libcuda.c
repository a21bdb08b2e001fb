/* A stand-in for libcuda.so.1: GPU_STANDIN_LIMIT_MIB limits what is not managed. */
#include <stdlib.h>

static unsigned long long used;

int cuInit(unsigned flags) { return (int)flags; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = NULL; return device; }
int cuCtxSetCurrent(void *context) { return context != NULL; }
int cuCtxSynchronize(void) { return 0; }

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    *total = strtoull(getenv("GPU_STANDIN_LIMIT_MIB"), NULL, 10) << 20;
    *free_bytes = *total - used - (300u << 20); /* the context */
    return 0;
}

int cuMemAlloc_v2(unsigned long long *block, size_t bytes)
{
    size_t free_bytes, total;
    cuMemGetInfo_v2(&free_bytes, &total);
    if (bytes > free_bytes) return 2;
    used += bytes;
    *block = bytes; /* a pointer that says its size */
    return 0;
}

int cuMemFree_v2(unsigned long long block) { used -= block; return 0; }
int cuMemAllocManaged(unsigned long long *block, size_t bytes, unsigned flags)
{
    *block = 0;
    return bytes == 0 || flags != 1;
}
int cuMemsetD8_v2(unsigned long long block, unsigned char value, size_t count)
{
    return block != 0 || value != 1 || count == 0;
}
