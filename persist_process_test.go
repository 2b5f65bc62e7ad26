package events_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes/scheme"

	events "github.com/eventrecorder/events"
	"github.com/eventrecorder/events/eventstest"
	"github.com/eventrecorder/events/internal/journal"
)

// children are what this test binary does instead of the tests when a test starts it
// once more. They return the exit code.
var children = map[string]func() int{"record": recordUntilKilled}

const (
	childVariable = "EVENTS_TEST_CHILD"
	killWorkers   = 8
	killObjects   = 5
	heartbeat     = 10 * time.Millisecond
)

// child is this binary once more, as the named child, with a directory, an endpoint
// and a number of its own.
func child(name, dir, url string, number int) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+name, "EVENTS_TEST_DIR="+dir, "EVENTS_TEST_URL="+url, fmt.Sprint("EVENTS_TEST_NUMBER=", number))
	cmd.Stderr = os.Stderr
	return cmd
}

// recordUntilKilled records numbered events. Before each it prints what it is about
// to record, and after the call when that was. In between it prints how late a timer
// and a small file are: a process that gets no processor or no disk can keep no promise.
func recordUntilKilled() int {
	r, err := events.NewRecorderForScheme(scheme.Scheme, nil, logr.Discard(), os.Getenv("EVENTS_TEST_URL"), controllerName,
		events.WithMetricsRegisterer(prometheus.NewRegistry()), events.WithJournal(os.Getenv("EVENTS_TEST_DIR")), events.WithConcurrency(killWorkers))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	out := make(chan string, 100)
	go func() {
		file := filepath.Join(os.Getenv("EVENTS_TEST_DIR"), "heartbeat")
		for before := time.Now(); ; {
			time.Sleep(heartbeat)
			_ = os.WriteFile(file+".new", make([]byte, 50_000), 0o600)
			_ = os.Rename(file+".new", file) // as the journal is written anew: some file systems take their time
			now := time.Now()
			out <- fmt.Sprintln("alive", now.UnixNano(), now.Sub(before).Nanoseconds())
			before = now
		}
	}()
	go func() {
		for n := 0; ; n++ {
			message := fmt.Sprintf("%s/%d", os.Getenv("EVENTS_TEST_NUMBER"), n)
			out <- fmt.Sprintln("about", 0, 0, message)
			r.Event(pod(fmt.Sprint("object", n%killObjects)), "Normal", "Testing", message)
			out <- fmt.Sprintln("recorded", time.Now().UnixNano(), 0, message)
			time.Sleep(3 * time.Millisecond)
		}
	}()
	for line := range out {
		if _, err := os.Stdout.WriteString(line); err != nil {
			return 1
		}
	}
	return 0
}

// life is what the test knows of a child that was killed.
type life struct {
	about    map[string]bool
	recorded map[string]time.Time
	killed   time.Time
	late     time.Duration // by how much its heartbeats were late, in its last half second
}

// liveAndDie runs a child and kills it some time after its first event.
func liveAndDie(t *testing.T, dir, url string, number int, after time.Duration) life {
	l := life{about: map[string]bool{}, recorded: map[string]time.Time{}}
	cmd := child("record", dir, url, number)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	var kill sync.Once
	var began time.Time
	lines := bufio.NewScanner(out)
	ticks := map[time.Time]time.Duration{}
	for lines.Scan() {
		var what, message string
		var at, gap int64
		_, _ = fmt.Sscan(lines.Text(), &what, &at, &gap, &message) // the last line may be torn
		switch {
		case what == "alive" && gap > 0:
			ticks[time.Unix(0, at)] = time.Duration(gap) - heartbeat
		case what == "about" && message != "":
			l.about[message] = true
			kill.Do(func() {
				began = time.Now()
				time.AfterFunc(after, func() {
					l.killed = time.Now()
					_ = cmd.Process.Kill()
				})
			})
		case what == "recorded" && message != "":
			l.recorded[message] = time.Unix(0, at)
		}
	}
	if cmd.Wait() == nil || l.killed.IsZero() {
		t.Errorf("child %d has ended by itself", number)
	}
	last := began
	for at, late := range ticks {
		if l.killed.Sub(at) < time.Second/2 {
			l.late = max(l.late, late)
		}
		if at.After(last) {
			last = at
		}
	}
	l.late = max(l.late, l.killed.Sub(last)-heartbeat)
	return l
}

// window is how long before its kill an event must have been recorded: the 100 ms of
// the promise, 20 ms for the write itself and the end of the process, and for two timers
// and writes in a row what a heartbeat was late: beside a calm neighbour 130 ms in all.
func (l *life) window() time.Duration { return 120*time.Millisecond + 2*l.late }

// kills is one endpoint, one directory, and the processes that are killed there one
// after the other.
type kills struct {
	name  string
	delay time.Duration
	down  func(n int) bool // whether the endpoint is down while the process n runs
}

func TestEventsSurviveKillsAtRandomMoments(t *testing.T) {
	each := 50
	if testing.Short() || raceEnabled() {
		each = 5
		t.Log("20 kills instead of 200")
	}
	for i, k := range []kills{
		{"up", 10 * time.Millisecond, func(int) bool { return false }},
		{"slow", 250 * time.Millisecond, func(int) bool { return false }},
		{"down", 0, func(int) bool { return true }},
		{"back after the kill", 10 * time.Millisecond, func(n int) bool { return n%2 == 0 }},
	} {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			k.run(t, each, rand.New(rand.NewPCG(11, uint64(i))))
		})
	}
}

// raceEnabled reports whether the race detector makes everything slower.
func raceEnabled() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

func (k kills) run(t *testing.T, times int, random *rand.Rand) {
	dir := t.TempDir()
	ep := eventstest.NewEndpoint(eventstest.WithWindow(0))
	defer ep.Close()
	ep.Behave(func(w http.ResponseWriter, r *http.Request, normal http.Handler) {
		select { // taken when it is answered
		case <-time.After(k.delay):
			normal.ServeHTTP(w, r)
		case <-r.Context().Done():
			panic(http.ErrAbortHandler)
		}
	})
	var lives []life
	for n := range times {
		if k.down(n) {
			ep.Down()
		} else {
			must(t, ep.Up())
		}
		lives = append(lives, liveAndDie(t, dir, ep.URL(), n, time.Duration(random.IntN(300))*time.Millisecond))
	}
	must(t, ep.Up())
	ep.Behave(nil) // as fast as it can
	h := newHarness(t, ep.URL(), events.WithJournal(dir))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := h.Flush(ctx); err != nil {
		t.Error(err)
	}
	if got := h.outcomes(); got["delivered"] != int(h.value("event_recorder_recovered_total")) {
		t.Errorf("outcomes of the last process: %v", got)
	}
	h.closed()
	k.check(t, ep.Requests(), lives)
}

// check compares what arrived with what was recorded.
func (k kills) check(t *testing.T, arrived []eventstest.Request, lives []life) {
	first, last := map[string]eventstest.Request{}, map[string][2]int{}
	events, twice, allowed := 0, 0, 0
	for _, r := range arrived {
		if r.Status != http.StatusAccepted {
			continue
		}
		m := r.Event.Message
		var at [2]int
		if _, err := fmt.Sscanf(m, "%d/%d", &at[0], &at[1]); err != nil || !lives[at[0]].about[m] {
			t.Fatalf("%q was never recorded", m)
		}
		if before, ok := first[m]; ok {
			twice++
			if a, b := before.Header.Get("Idempotency-Key"), r.Header.Get("Idempotency-Key"); a != b || string(before.Body) != string(r.Body) {
				t.Errorf("%s came again as %s with key %s, before %s with %s", m, r.Body, b, before.Body, a)
			}
			continue
		}
		first[m] = r
		object := r.Event.InvolvedObject.Name
		if before, ok := last[object]; ok && (at[0] < before[0] || at[0] == before[0] && at[1] <= before[1]) {
			t.Errorf("%s of %s came after %v", m, object, before)
		}
		last[object] = at
	}
	var worst time.Duration
	var lost int
	recorded := map[string]time.Time{}
	for _, l := range lives {
		maps.Copy(recorded, l.recorded)
	}
	for _, l := range lives {
		worst = max(worst, l.late)
		for m, at := range l.recorded {
			events++
			_, ok := first[m]
			switch pending := l.killed.Sub(at); {
			case ok:
			case pending >= l.window():
				t.Errorf("%s was recorded %v before the kill (heartbeats %v late) and never arrived", m, pending, l.late)
			default:
				lost++
			}
		}
		// What was being posted, and what was in the journal and had been answered
		// while its "done" was not written.
		allowed += killWorkers
		for _, r := range arrived {
			answered := r.Time.Add(k.delay)
			written := answered.Sub(recorded[r.Event.Message]) > 60*time.Millisecond
			if ago := l.killed.Sub(answered); r.Status == http.StatusAccepted && written && ago > -5*time.Millisecond && ago < l.window() {
				allowed++
			}
		}
	}
	t.Logf("%s: %d kills, %d events recorded, %d lost younger than the window, %d arrived twice (%d allowed); heartbeats at most %v late",
		k.name, len(lives), events, lost, twice, allowed, worst)
	if twice > allowed {
		t.Errorf("%d arrived twice, %d are allowed", twice, allowed)
	}
	if events < 10*len(lives) {
		t.Errorf("only %d events were recorded: this test shows nothing", events)
	}
}

func TestAJournalThatAnotherProcessHoldsIsAnErrorThatSaysSo(t *testing.T) {
	dir := t.TempDir()
	const url = "http://127.0.0.1:1/"
	cmd := child("record", dir, url, 0)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	defer func() { _ = cmd.Wait() }()
	defer func() { _ = cmd.Process.Kill() }()
	lines := bufio.NewScanner(out)
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "recorded") {
	}
	_, err = open(url, controllerName, dir)
	wantError(t, err, fmt.Sprintf("events: WithJournal(%q): ", dir), "in use by another process, or twice in this one")
	if !errors.Is(err, journal.ErrLocked) {
		t.Errorf("got %v", err)
	}
}
