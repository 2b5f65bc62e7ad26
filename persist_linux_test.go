package events_test

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// The test runs itself once more, in a process in which no file may be longer than
// a limit: a write is cut short there and then fails, as on a full disk.
func TestAFullDiskLosesNothingThatMemoryKeepsAndTheJournalComesBack(t *testing.T) {
	const variable = "EVENTS_TEST_FULL_DISK"
	if os.Getenv(variable) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), variable+"="+t.TempDir())
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	signal.Ignore(syscall.SIGXFSZ)
	var unlimited syscall.Rlimit
	must(t, syscall.Getrlimit(syscall.RLIMIT_FSIZE, &unlimited))
	limit := func(bytes uint64) {
		must(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: bytes, Max: unlimited.Max}))
	}
	dir := os.Getenv(variable)
	synctest.Test(t, func(t *testing.T) {
		tr, h := outage(t, dir)
		for i := range 20 {
			h.say(fmt.Sprint(i%3), fmt.Sprint("event ", i))
		}
		time.Sleep(time.Second)
		limit(10_000)
		for i := range 100 {
			h.say(fmt.Sprint(i%3), fmt.Sprint("event ", i+20))
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(5 * time.Minute)
		limit(unlimited.Cur) // before anything else wants to write
		if n := int(h.value("event_recorder_journal_errors_total")); n < 5 || n > 6 {
			t.Errorf("%d errors counted in five minutes", n)
		}
		h.wantJournal(int(h.value("event_recorder_journal_errors_total")), 0, 1, 0)
		part, damage := leftDamaged(t, dir)
		if n := wantOrder(t, part); n < 20 || n > 40 || damage == nil {
			t.Errorf("the journal has %d events, want those that fitted; damage: %v", n, damage)
		}
		time.Sleep(time.Minute)
		h.wantJournal(int(h.value("event_recorder_journal_errors_total")), 0, 1, 1)
		if n := wantOrder(t, left(t, dir)); n != 120 {
			t.Errorf("the journal has %d of 120 events when there is room again", n)
		}
		must(t, tr.Up())
		h.settled()
		h.wantOutcomes(map[string]int{"delivered": 120})
		if n := wantOrder(t, tr.Events()); n != 120 {
			t.Errorf("%d of 120 events arrived", n)
		}
		h.closed()
	})
}
