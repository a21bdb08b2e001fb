package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

const (
	command     = "allocate"
	limits      = "/run/nvml-standin/limits"
	cgroups     = "/sys/fs/cgroup"
	noLimit     = 1<<64 - 1
	mib         = 1 << 20
	outOfMemory = 3
)

// allocate does what the driver's library would: it takes so much memory of each of the container's
// GPUs unless the processes of its cgroup would have more than the cgroup's limit.
func allocate(text string) {
	wanted, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		fail(2, "%s %q: wanted a number of MiB", command, text)
	}
	used := usedByOthers()
	for _, uuid := range strings.Split(os.Getenv("GPUSHARE_CARD_UUID"), ",") {
		limit, err := limitOf(uuid)
		if err != nil {
			fail(2, "the limit of GPU %s: %v", uuid, err)
		}
		if limit != noLimit && used+wanted > limit/mib {
			fail(outOfMemory, "out of memory: GPU %s: wanted %d MiB, used %d MiB of %d MiB",
				uuid, wanted, used, limit/mib)
		}
	}
	fmt.Printf("allocated %d MiB\n", wanted)
}

// limitOf returns the hard limit of this process's cgroup in bytes: the last line of the table with
// this GPU and cgroup. The table has UUID, the cgroup's number, soft and hard limit, and its path.
func limitOf(uuid string) (uint64, error) {
	table, err := os.ReadFile(limits)
	if errors.Is(err, fs.ErrNotExist) {
		return noLimit, nil
	}
	number, path, errOwn := ownCgroup()
	if err := errors.Join(err, errOwn); err != nil {
		return 0, err
	}
	limit := uint64(noLimit)
	for _, line := range strings.Split(string(table), "\n") {
		fields := strings.SplitN(line, "\t", 5)
		if len(fields) < 5 || fields[0] != uuid || (fields[1] != number && fields[4] != path) {
			continue
		}
		if limit, err = strconv.ParseUint(fields[3], 10, 64); err != nil {
			return 0, err
		}
	}
	return limit, nil
}

// ownCgroup returns the number and the path of this process's cgroup. With cgroup v2 alone, a
// container sees its own cgroup as the root, so only the number is of use; with v1, only the path.
func ownCgroup() (number, path string, err error) {
	var status syscall.Stat_t
	if _, err := os.Stat(filepath.Join(cgroups, "cgroup.controllers")); err == nil {
		err = syscall.Stat(cgroups, &status)
		return strconv.FormatUint(status.Ino, 10), "", err
	}
	text, err := os.ReadFile("/proc/self/cgroup")
	for _, line := range strings.Split(string(text), "\n") {
		if found, is := strings.CutPrefix(line, "0::"); is {
			return "", found, err
		}
	}
	return "", "", errors.Join(err, errors.New("no cgroup v2 in /proc/self/cgroup"))
}

// usedByOthers returns what the container's other processes have allocated, in MiB: what their
// command lines ask for.
func usedByOthers() (sum uint64) {
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	own := fmt.Sprintf("/proc/%d/cmdline", os.Getpid())
	for _, path := range paths {
		text, err := os.ReadFile(path)
		words := strings.Split(string(text), "\x00")
		if err != nil || path == own || len(words) < 3 || words[1] != command {
			continue // a process that has ended, this one, or another program
		}
		amount, _ := strconv.ParseUint(words[2], 10, 32)
		sum += amount
	}
	return sum
}

func fail(code int, format string, values ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", values...)
	os.Exit(code)
}
