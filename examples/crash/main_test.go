package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/eventrecorder/events"
)

func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) != "" { // the test runs the processes
		main()
		return
	}
	os.Exit(m.Run())
}

func TestEveryEventArrivesOnceAndInOrderThoughTheFirstProcessIsKilled(t *testing.T) {
	var out strings.Builder
	began := time.Now()
	if err := run(t.Context(), &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("it took %v", took)
	}
	for _, want := range []string{
		"The first process is killed. 0 events have arrived.",
		`"recovered"=12`,
		"The second process has ended. The journal has 0 bytes.",
		"All 15 events arrived once and in order, 12 of them recorded by a process that was killed.",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing:\n%s", want, out.String())
		}
	}
	for line := range strings.Lines(out.String()) {
		if len(line) > 101 {
			t.Errorf("a line has %d columns: %s", len(line), line)
		}
	}
}

func TestAMissingADoubleAndAMisplacedEventAreErrors(t *testing.T) {
	good := func() (all []events.Event) {
		for n := range rounds + 1 {
			for _, name := range objects {
				all = append(all, events.Event{InvolvedObject: *object(name), Message: fmt.Sprintf("event %d", n+1)})
			}
		}
		return all
	}
	for name, test := range map[string]struct {
		change func(all []events.Event) []events.Event
		ok     bool
	}{
		"good":      {func(all []events.Event) []events.Event { return all }, true},
		"missing":   {func(all []events.Event) []events.Event { return all[1:] }, false},
		"double":    {func(all []events.Event) []events.Event { return append(all, all[3]) }, false},
		"misplaced": {func(all []events.Event) []events.Event { all[0], all[3] = all[3], all[0]; return all }, false},
		"unknown": {func(all []events.Event) []events.Event {
			return append(all, events.Event{InvolvedObject: *object("another")})
		}, false},
	} {
		var out strings.Builder
		err := (&story{out: &out}).account(test.change(good()))
		if (err == nil) != test.ok || strings.Contains(out.String(), "All 15") != test.ok {
			t.Errorf("%s: %v\n%s", name, err, out.String())
		}
	}
}
