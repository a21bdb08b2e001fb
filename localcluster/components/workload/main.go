// The sample workload of the local cluster: it says in which environment it runs, and waits.
//
//	WORKLOAD_RUN_SECONDS=N   exit with 0 after N seconds (an init container); default: run for good
//	WORKLOAD_STOP_SECONDS=N  take N seconds to exit once asked to
package main

import (
	"fmt"
	"os"
	"os/signal"
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
	fmt.Println("ready")
	select {
	case <-ended:
	case <-stop:
		time.Sleep(stopTime)
		fmt.Println("stopped")
	}
}
