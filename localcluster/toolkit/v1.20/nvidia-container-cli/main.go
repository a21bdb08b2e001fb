// A stand-in for NVIDIA's nvidia-container-cli, which nvidia-container-runtime-hook calls before a
// container of the legacy mode starts:
//
//	nvidia-container-cli [--root=DIR] configure [--device=LIST] [--compute] [--utility] --pid=N ROOTFS
//
// It gives the container of process N the device nodes of the cards in LIST (UUIDs, indexes or `all`),
// /dev/nvidiactl and, for --compute, the unified memory's; the libraries of the driver in DIR; and
// nvidia-smi. An unknown card is an error, and nothing is changed then. It asks the driver's own
// libnvidia-ml.so.1 for the cards, be that the real one or a stand-in.
//
// Not done: requirements (--require) are not checked, MIG devices and IMEX channels do not exist, and
// ldconfig is not run: the links that it would make are made here. Under cgroup v2 the container's
// device filter is left as it is, so a device node is there but cannot be opened.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"
)

type request struct {
	root, rootfs, devices string
	pid                   int
	compute, noCgroups    bool
}

func parse(words []string) (request, error) {
	wanted := request{root: "/"}
	configure := false
	var err error
	for _, word := range words {
		name, value, _ := strings.Cut(word, "=")
		switch {
		case !strings.HasPrefix(word, "-") && !configure:
			if word != "configure" {
				return wanted, fmt.Errorf("unknown command %q, there is only configure", word)
			}
			configure = true
		case !strings.HasPrefix(word, "-"):
			wanted.rootfs = word
		case name == "--root":
			wanted.root = value
		case name == "--device":
			wanted.devices = value
		case name == "--pid":
			wanted.pid, err = strconv.Atoi(value)
		case name == "--compute":
			wanted.compute = true
		case name == "--no-cgroups":
			wanted.noCgroups = true
		}
	}
	if err == nil && (wanted.rootfs == "" || wanted.pid == 0) {
		err = errors.New("configure wants --pid=N and the container's root folder")
	}
	return wanted, err
}

// libraries returns the driver's libraries below root that end in its version.
func libraries(root string) ([]string, error) {
	for _, folder := range []string{"usr/lib/*-linux-gnu", "usr/lib64", "usr/lib"} {
		found, err := filepath.Glob(filepath.Join(root, folder, "lib*.so.[0-9]*.[0-9]*"))
		if err != nil || len(found) > 0 {
			return found, err
		}
	}
	return nil, fmt.Errorf("no driver library in %s", root)
}

func nvmlOf(files []string) (nvml.Interface, error) {
	for _, file := range files {
		if strings.HasPrefix(filepath.Base(file), "libnvidia-ml.so.") {
			driver := nvml.New(nvml.WithLibraryPath(file))
			if code := driver.Init(); code != nvml.SUCCESS {
				return nil, fmt.Errorf("initialization error: nvml error: %v", code)
			}
			return driver, nil
		}
	}
	return nil, errors.New("initialization error: load library failed: libnvidia-ml.so.1")
}

// minors returns the minor numbers of the cards that the list names.
func minors(driver nvml.Interface, list string) ([]int, error) {
	names := strings.FieldsFunc(list, func(r rune) bool { return r == ',' })
	if list == "all" {
		count, code := driver.DeviceGetCount()
		if code != nvml.SUCCESS {
			return nil, fmt.Errorf("device error: %v", code)
		}
		names = nil
		for index := range count {
			names = append(names, strconv.Itoa(index))
		}
	}
	var found []int
	for _, name := range names {
		device, code := driver.DeviceGetHandleByUUID(name)
		if index, err := strconv.Atoi(name); err == nil {
			device, code = driver.DeviceGetHandleByIndex(index)
		}
		if code != nvml.SUCCESS {
			return nil, fmt.Errorf("device error: %s: unknown device", name)
		}
		minor, code := device.GetMinorNumber()
		if code != nvml.SUCCESS {
			return nil, fmt.Errorf("device error: %s: %v", name, code)
		}
		found = append(found, minor)
	}
	return found, nil
}

// nodes returns the device nodes that the container gets, by name, as the driver's root has them.
func nodes(wanted request, cards []int) (map[string]unix.Stat_t, error) {
	names := []string{"nvidiactl"}
	if wanted.compute {
		names = append(names, "nvidia-uvm", "nvidia-uvm-tools")
	}
	for _, minor := range cards {
		names = append(names, fmt.Sprintf("nvidia%d", minor))
	}
	found := map[string]unix.Stat_t{}
	for _, name := range names {
		var status unix.Stat_t
		path := filepath.Join(wanted.root, "dev", name)
		if err := unix.Stat(path, &status); err != nil {
			return nil, fmt.Errorf("device error: stat failed: %s: %w", path, err)
		}
		found[name] = status
	}
	return found, nil
}

// allow lets the container open the device nodes, where cgroup v1 says what it may open.
func allow(pid int, found map[string]unix.Stat_t) error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return err
	}
	mount, group := "", ""
	for _, line := range strings.Split(string(mounts), "\n") {
		before, after, _ := strings.Cut(line, " - ")
		kind := strings.Fields(after)
		if len(kind) == 3 && kind[0] == "cgroup" && contains(kind[2], "devices") {
			mount = strings.Fields(before)[4]
		}
	}
	for _, line := range strings.Split(string(groups), "\n") {
		if parts := strings.SplitN(line, ":", 3); len(parts) == 3 && contains(parts[1], "devices") {
			group = parts[2]
		}
	}
	if mount == "" || group == "" {
		return nil
	}
	file := filepath.Join(mount, group, "devices.allow")
	for _, status := range found {
		rule := fmt.Sprintf("c %d:%d rw", unix.Major(status.Rdev), unix.Minor(status.Rdev))
		if err := os.WriteFile(file, []byte(rule), 0); err != nil {
			return fmt.Errorf("container error: cgroup: %w", err)
		}
	}
	return nil
}

func contains(list, word string) bool {
	return strings.Contains(","+list+",", ","+word+",")
}

func enter(pid int) error {
	namespace, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	return unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNS)
}

// bind shows a file of the driver at the same place in the container, to be read only.
func bind(wanted request, file string) error {
	target := filepath.Join(wanted.rootfs, strings.TrimPrefix(file, wanted.root))
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	made, err := os.OpenFile(target, os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	made.Close()
	if err := unix.Mount(file, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount error: %s: %w", target, err)
	}
	flags := unix.MS_BIND | unix.MS_REMOUNT | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV
	return unix.Mount("", target, "", uintptr(flags), "")
}

// link makes the name by which programs ask for a library, lib<name>.so.1.
func link(wanted request, file string) error {
	target := filepath.Join(wanted.rootfs, strings.TrimPrefix(file, wanted.root))
	stem, _, _ := strings.Cut(target, ".so.")
	err := os.Symlink(filepath.Base(target), stem+".so.1")
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	return err
}

func configure(wanted request) error {
	files, err := libraries(wanted.root)
	if err != nil {
		return err
	}
	driver, err := nvmlOf(files)
	if err != nil {
		return err
	}
	cards, err := minors(driver, wanted.devices)
	if err != nil {
		return err
	}
	found, err := nodes(wanted, cards)
	if err != nil {
		return err
	}
	if !wanted.noCgroups {
		if err := allow(wanted.pid, found); err != nil {
			return err
		}
	}
	if err := enter(wanted.pid); err != nil {
		return fmt.Errorf("container error: namespace: %w", err)
	}
	for name, status := range found {
		path := filepath.Join(wanted.rootfs, "dev", name)
		err := unix.Mknod(path, unix.S_IFCHR|0o666, int(status.Rdev))
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("mount error: mknod %s: %w", path, err)
		}
		if err := unix.Chmod(path, 0o666); err != nil {
			return err
		}
	}
	for _, file := range files {
		if err := bind(wanted, file); err != nil {
			return err
		}
		if err := link(wanted, file); err != nil {
			return err
		}
	}
	return bind(wanted, filepath.Join(wanted.root, "usr/bin/nvidia-smi"))
}

func main() {
	wanted, err := parse(os.Args[1:])
	if err == nil {
		err = configure(wanted)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "nvidia-container-cli: %v\n", err)
		os.Exit(1)
	}
}
