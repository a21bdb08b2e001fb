// The sample workload of the local cluster: it says in which environment it runs and which of the
// driver's device nodes it has, and waits.
//
// A device node is a line such as `/dev/nvidia0 195:0 allowed`: `allowed` where the container may open
// it, be there a driver behind it or not, `denied` where the container's device filter forbids it.
//
//	WORKLOAD_RUN_SECONDS=N   exit with 0 after N seconds (an init container); default: run for good
//	WORKLOAD_STOP_SECONDS=N  take N seconds to exit once asked to
//
// `workload allocate N` asks the stand-in for the driver for N MiB of each of its GPUs before it waits.
// Above the limit of its cgroup it ends with 3.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"sort"
	"strconv"
	"syscall"
	"time"
)

func seconds(name string) (time.Duration, bool) {
	text, set := os.LookupEnv(name)
	if !set {
		return 0, false
	}
	number, err := strconv.ParseFloat(text, 64)
	if err != nil || number < 0 {
		fmt.Fprintf(os.Stderr, "%s=%q: wanted a number of seconds, zero or more\n", name, text)
		os.Exit(2)
	}
	return time.Duration(number * float64(time.Second)), true
}

func device(path string) string {
	var status syscall.Stat_t
	if err := syscall.Stat(path, &status); err != nil {
		return fmt.Sprintf("%s %v", path, err)
	}
	may := "allowed"
	file, err := os.Open(path)
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES) {
		may = "denied"
	}
	file.Close()
	return fmt.Sprintf("%s %d:%d %s", path, status.Rdev>>8&0xfff, status.Rdev&0xff, may)
}

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	stopTime, _ := seconds("WORKLOAD_STOP_SECONDS")
	var ended <-chan time.Time
	if runTime, set := seconds("WORKLOAD_RUN_SECONDS"); set {
		ended = time.After(runTime)
	}
	environment := os.Environ()
	sort.Strings(environment)
	for _, line := range environment {
		fmt.Println(line)
	}
	devices, _ := filepath.Glob("/dev/nvidia*")
	for _, path := range devices {
		fmt.Println(device(path))
	}
	if len(os.Args) == 3 && os.Args[1] == command {
		allocate(os.Args[2])
	}
	fmt.Println("ready")
	select {
	case <-ended:
	case <-stop:
		time.Sleep(stopTime)
		fmt.Println("stopped")
	}
}
