// Command compare measures this library against the alternatives, in one run
// and with public tools only, and prints a Markdown table:
//
//	go run . [-quick] [-only regexp] [-cpuprofile file] [-write file]
//
// With -write the table also replaces what is between the marks
// <!-- compare:begin --> and <!-- compare:end --> of a file.
//
// The alternatives are the recorder of github.com/fluxcd/pkg/runtime/events,
// a goroutine per event that posts with the same retrying client, client-go's
// recorder alone, which notifies nobody, and, as the limit of what can be
// delivered, a loop that does nothing but post with net/http.
//
// Each measurement is a file of its own, whose first comment says what is
// measured and how. The run fails if a goal is missed, after the table.
//
// The tests of this module check that this library posts what the peer posts;
// differences_test.go has what differs on purpose. The module in wiring/ does
// the same for a controller that is wired with the peer's older constructor.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime/pprof"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

// measurements, in the order of the table.
var measurements = []struct {
	name string
	run  func(*report, scale) error
}{
	{"calls", measureCalls},
	{"delivery", measureDelivery},
	{"steps", measureSteps},
	{"connections", measureConnections},
	{"outage", measureOutage},
	{"recovery", measureRecovery},
	{"order", measureOrder},
	{"half", measureHalf},
	{"shutdown", measureShutdown},
	{"kill", measureKill},
	{"growth", measureGrowth},
}

func main() {
	quick := flag.Bool("quick", false, "a few seconds in all, to see that everything runs; the numbers mean nothing")
	only := flag.String("only", "", "run the measurements whose name matches this `regexp`")
	profile := flag.String("cpuprofile", "", "write a CPU profile of the run to this `file`")
	write := flag.String("write", "", "put the report between the marks of this Markdown `file` too")
	flag.Parse()
	quieten()

	if was, err := child(); was {
		if err != nil {
			fmt.Fprintln(os.Stderr, "compare:", err)
			os.Exit(1)
		}
		os.Exit(0) // whatever is still running
	}
	s := full
	if *quick {
		s = quickly
	}
	var report bytes.Buffer
	err := run(io.MultiWriter(os.Stdout, &report), os.Stderr, s, *only, *profile)
	if *write != "" && (err == nil || errors.Is(err, errGoalMissed)) {
		err = errors.Join(err, replaceReport(*write, report.String()))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}

const (
	beginMark = "<!-- compare:begin -->\n"
	endMark   = "<!-- compare:end -->\n"
)

// replaceReport puts a report between the marks of a file.
func replaceReport(name, report string) error {
	content, err := os.ReadFile(name)
	if err != nil {
		return fmt.Errorf("-write: %w", err)
	}
	before, rest, begins := strings.Cut(string(content), beginMark)
	_, after, ends := strings.Cut(rest, endMark)
	if !begins || !ends {
		return fmt.Errorf("-write: %s has no marks", name)
	}
	return os.WriteFile(name, []byte(before+beginMark+report+endMark+after), 0o644)
}

// quieten silences client-go and controller-runtime: what they say about the API
// server that is not there is no result. It must come before they are used.
func quieten() {
	klog.SetLogger(logr.Discard())
	ctrl.SetLogger(logr.Discard())
}

var errGoalMissed = errors.New("a goal was missed")

// run measures, and prints the report to out and what it is doing to progress.
func run(out, progress io.Writer, s scale, only, profile string) error {
	selected, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	if profile != "" {
		f, err := os.Create(profile)
		if err != nil {
			return fmt.Errorf("-cpuprofile: %w", err)
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return fmt.Errorf("-cpuprofile: %w", err)
		}
		defer pprof.StopCPUProfile()
	}

	began := time.Now()
	var r report
	for _, m := range measurements {
		if !selected.MatchString(m.name) {
			continue
		}
		at := time.Now()
		if err := m.run(&r, s); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		fmt.Fprintf(progress, "%s: %v\n", m.name, time.Since(at).Round(100*time.Millisecond))
	}
	r.print(out, s, time.Since(began))
	if s.quick || r.achieved() {
		return nil
	}
	return errGoalMissed
}
