package events_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"

	events "github.com/eventrecorder/events"
	"github.com/eventrecorder/events/eventstest"
	"github.com/eventrecorder/events/internal/journal"
)

// open makes a recorder that nobody records with.
func open(url, controller, dir string) (*events.EventRecorder, error) {
	return events.NewRecorderForScheme(scheme.Scheme, nil, logr.Discard(), url, controller,
		events.WithJournal(dir), events.WithMetricsRegisterer(prometheus.NewRegistry()))
}

func TestAJournalBelongsToOneRecorderOfAControllerAndAnEndpoint(t *testing.T) {
	const url = "http://endpoint.test/hook"
	dir := t.TempDir()
	first, err := open(url, "a", dir)
	must(t, err)
	_, err = open(url, "a", dir)
	wantError(t, err, fmt.Sprintf("events: WithJournal(%q): ", dir), "in use by another process, or twice in this one")

	var others []*events.EventRecorder
	for _, of := range [][2]string{{url + "2", "a"}, {url, "b"}, {url, "a/b"}, {url, "a:b"}, {url, strings.Repeat("long", 100)}, {url, strings.Repeat("long", 101)}} {
		other, err := open(of[0], of[1], dir)
		must(t, err)
		others = append(others, other)
	}
	for _, other := range others {
		must(t, other.Shutdown(context.Background()))
	}
	if found, _ := filepath.Glob(filepath.Join(dir, "*.journal")); len(found) != 1+len(others) {
		t.Errorf("%d recorders have %d journals", 1+len(others), len(found))
	}

	must(t, first.Shutdown(context.Background()))
	again, err := open(url, "a", dir)
	must(t, err)
	must(t, again.Shutdown(context.Background()))
}

// The next process may have another version of the package.
func TestTheNameOfAJournalIsTheSameInEveryVersion(t *testing.T) {
	const url = "http://notification-controller.flux-system.svc.cluster.local./"
	for controller, want := range map[string]string{
		"kustomize-controller": "events-kustomize-controller-779bb3268988b2b8.journal",
		"AZ/az.09 š":           "events-AZ_az_09__-f454ddc7bf700eee.journal",
	} {
		dir := t.TempDir()
		r, err := open(url, controller, dir)
		must(t, err)
		if got := filepath.Base(journalFile(t, dir)); got != want {
			t.Errorf("the journal of %q is %s, want %s", controller, got, want)
		}
		must(t, r.Shutdown(context.Background()))
	}
}

func TestARecorderThatIsRefusedByItsManagerLetsGoOfTheJournal(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		_, err := events.NewRecorder(failingManager{newManager(t, ctrl.Options{})}, logr.Discard(), "http://endpoint.test/", "a",
			events.WithJournal(dir), events.WithMetricsRegisterer(prometheus.NewRegistry()))
		if !errors.Is(err, errAdd) {
			t.Errorf("got %v", err)
		}
	}
}

func TestOnlyTheOwnerCanReadAJournal(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no such modes")
	}
	parent := t.TempDir()
	dir := filepath.Join(parent, "a", "b")
	r, err := open("http://127.0.0.1:1/", "a", dir)
	must(t, err)
	r.Event(pod("a"), "Normal", "Testing", "event 1")
	_ = r.Shutdown(over())
	must(t, filepath.WalkDir(filepath.Join(parent, "a"), func(path string, d fs.DirEntry, err error) error {
		must(t, err)
		info, err := d.Info()
		must(t, err)
		want := fs.FileMode(0o600)
		if d.IsDir() {
			want = 0o700
		}
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %o", path, info.Mode().Perm())
		}
		return nil
	}))
}

func TestADirectoryThatCannotBeUsedIsAnErrorThatNamesIt(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	for dir, cause := range map[string]string{
		"":                         "must not be empty",
		file:                       file,
		filepath.Join(file, "sub"): file,
		"/proc/self":               "no such file",
		"a\x00b":                   "invalid argument",
	} {
		if runtime.GOOS != "linux" && strings.HasPrefix(dir, "/proc") {
			continue
		}
		_, err := open("http://endpoint.test/", "a", dir)
		wantError(t, err, fmt.Sprintf("events: WithJournal(%q): ", dir), cause)
	}
}

// outage is a recorder with a journal whose endpoint is down, in a bubble.
func outage(t *testing.T, dir string, opts ...events.Option) (*eventstest.Transport, *harness) {
	tr := eventstest.NewTransport(eventstest.WithWindow(0))
	t.Cleanup(tr.Close)
	tr.Down()
	return tr, newHarness(t, tr.URL(), append(opts, on(tr), events.WithJournal(dir))...)
}

func TestADamagedJournalIsCountedAndItsGoodPartDelivered(t *testing.T) {
	good := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		_, h := outage(t, good)
		for i := range 50 {
			h.say("a", fmt.Sprint("event ", i))
		}
		h.shutdownNow()
	})
	size := journalSize(t, good)
	unreadable := journal.Entry{ID: 1000, Data: []byte(strings.Repeat(" ", 24) + `{"message":`)}
	short := journal.Entry{ID: 1001, Data: []byte("short")}
	for name, test := range map[string]struct {
		damage          func(t *testing.T, path string)
		least, most, no int // events that are delivered, errors at the second start
	}{
		"the tail is cut": {func(t *testing.T, path string) { must(t, os.Truncate(path, size-1)) }, 49, 49, 0},
		"half is cut":     {func(t *testing.T, path string) { must(t, os.Truncate(path, size/2)) }, 20, 30, 0},
		"garbage behind":  {func(t *testing.T, path string) { appendTo(t, path, "what is this?") }, 50, 50, 0},
		"another version": {func(t *testing.T, path string) {
			must(t, os.WriteFile(path, []byte("events journal 2\nand more"), 0o600))
		}, 0, 0, 0},
		"entries that are no events": {func(t *testing.T, path string) {
			j, _, err := journal.Open(path)
			must(t, err)
			must(t, j.Append([]journal.Entry{unreadable, short}, nil))
			must(t, j.Close())
		}, 50, 50, 0},
	} {
		t.Run(name, func(t *testing.T) {
			dir := crash(t, good)
			test.damage(t, journalFile(t, dir))
			synctest.Test(t, func(t *testing.T) {
				tr := eventstest.NewTransport()
				defer tr.Close()
				h := newHarness(t, tr.URL(), on(tr), events.WithJournal(dir))
				h.say("a", "event 100")
				h.settled()
				if n := wantOrder(t, tr.Events()) - 1; n < test.least || n > test.most {
					t.Errorf("%d recovered events were delivered", n)
				}
				h.wantJournal(1, 1, 0, 0)
				time.Sleep(time.Second)
				dir := crash(t, dir)
				h.closed()

				// What could not be read is not complained about a second time.
				again := newHarness(t, tr.URL(), on(tr), events.WithJournal(dir))
				again.wantJournal(0, 0, 0, 0)
				again.wantOutcomes(map[string]int{})
				again.closed()
			})
		})
	}
}

func TestADirectoryThatIsRemovedWhileRunningCostsNothingButAMinute(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "journal")
	synctest.Test(t, func(t *testing.T) {
		tr, h := outage(t, dir)
		for i := range 10 {
			h.say(fmt.Sprint(i%3), fmt.Sprint("event ", i))
		}
		time.Sleep(time.Second)
		must(t, os.RemoveAll(dir))
		for i := range 10 {
			h.say(fmt.Sprint(i%3), fmt.Sprint("event ", i+10))
		}
		time.Sleep(30 * time.Second)
		h.wantJournal(1, 0, 1, 0)
		if _, err := os.Stat(dir); err == nil {
			t.Error("the journal was written before a minute was over")
		}
		time.Sleep(31 * time.Second)
		h.wantJournal(1, 0, 1, 1)
		if n := wantOrder(t, left(t, dir)); n != 20 {
			t.Errorf("the journal has %d of 20 events", n)
		}
		h.say("0", "event 20")
		time.Sleep(time.Second)
		if n := wantOrder(t, left(t, dir)); n != 21 {
			t.Errorf("the journal has %d of 21 events", n)
		}
		must(t, tr.Up())
		h.settled()
		h.wantOutcomes(map[string]int{"delivered": 21})
		h.wantJournal(1, 0, 1, 1)
		h.closed()
	})
}

// block puts a file where the directory was, so that it cannot be made again.
func block(t *testing.T, dir string) {
	t.Helper()
	must(t, os.RemoveAll(dir))
	must(t, os.WriteFile(dir, nil, 0o600))
}

func TestAJournalThatFailsForLongIsLoggedOnceAndTriedEveryMinute(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "journal")
	synctest.Test(t, func(t *testing.T) {
		tr, h := outage(t, dir)
		h.say("a", "event 0")
		time.Sleep(time.Second)
		block(t, dir)
		h.say("a", "event 1")
		time.Sleep(10 * time.Minute)
		h.wantJournal(10, 0, 1, 0)
		if lines := h.log.with(msgJournalFails); len(lines) == 1 && (lines[0].Level >= 0 || lines[0].Err == nil) {
			t.Errorf("log: %v", lines)
		}
		must(t, tr.Up())
		h.settled()
		h.wantOutcomes(map[string]int{"delivered": 2})
		h.closed()
	})
}

func TestSavedMeansSavedAlsoIfTheDirectoryWasRemovedUnnoticed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "journal")
	synctest.Test(t, func(t *testing.T) {
		_, h := outage(t, dir)
		for i := range 10 {
			h.say("a", fmt.Sprint("event ", i))
		}
		time.Sleep(time.Second)
		must(t, os.RemoveAll(dir))
		wantError(t, h.Shutdown(over()), "10 event(s) not delivered, saved in the journal")
		h.wantOutcomes(map[string]int{"saved": 10})
		if n := wantOrder(t, left(t, dir)); n != 10 {
			t.Errorf("the journal has %d of 10 events", n)
		}
	})
}

func TestAShutdownInTheMinuteAfterAnErrorSavesAllTheSame(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "journal")
	synctest.Test(t, func(t *testing.T) {
		_, h := outage(t, dir)
		h.say("a", "event 0")
		time.Sleep(time.Second)
		must(t, os.Rename(dir, dir+"-away"))
		h.say("a", "event 1")
		time.Sleep(time.Second)
		h.wantJournal(1, 0, 1, 0)
		must(t, os.Rename(dir+"-away", dir))
		wantError(t, h.Shutdown(over()), "2 event(s) not delivered, saved in the journal")
		if n := wantOrder(t, left(t, dir)); n != 2 {
			t.Errorf("the journal has %d of 2 events", n)
		}
	})
}

func TestWhatTheJournalCannotTakeIsLostAndTheDrainTriesToTheEnd(t *testing.T) {
	for name, back := range map[string]bool{"the endpoint comes back": true, "it does not": false} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "journal")
			synctest.Test(t, func(t *testing.T) {
				tr, h := outage(t, dir)
				for i := range 10 {
					h.say(fmt.Sprint(i), "event 1")
				}
				time.Sleep(time.Minute)
				block(t, dir)
				if back {
					time.AfterFunc(5*time.Second, func() { _ = tr.Up() })
				}
				ctx, cancel := context.WithTimeout(context.Background(), 8*time.Second)
				defer cancel()
				err := h.Shutdown(ctx)
				if back {
					h.wantOutcomes(map[string]int{"delivered": 10})
					must(t, err)
					return
				}
				h.wantOutcomes(map[string]int{"shutdown": 10})
				if err == nil || strings.Contains(err.Error(), "journal") || !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
				if len(h.log.with(msgLost)) != 1 || len(h.log.with(msgSaved)) != 0 || len(h.log.with(msgJournalFails)) != 1 {
					t.Errorf("log: %v", h.log.lines)
				}
			})
		})
	}
}

// Folding overwrites an event while its copy is written: a matter for the race
// detector.
func TestEventsAreFoldedWhileTheyAreWritten(t *testing.T) {
	h := newHarness(t, "http://127.0.0.1:1/", events.WithJournal(t.TempDir()), events.WithRetryWait(time.Second, time.Second))
	h.log.quiet = true
	notes := map[string]string{"a": "1", "b": "2"}
	for until := time.Now().Add(400 * time.Millisecond); time.Now().Before(until); time.Sleep(30 * time.Microsecond) {
		for i := range 200 {
			h.AnnotatedEventf(pod(fmt.Sprint(i)), notes, "Normal", "Testing", "not ready")
		}
		time.Sleep(85 * time.Millisecond)
		for i := range 200 {
			h.AnnotatedEventf(pod(fmt.Sprint(i)), notes, "Normal", "Testing", "not ready")
		}
	}
	h.shutdownNow()
	if got := h.outcomes(); got["saved"] != 200 || len(got) != 2 {
		t.Errorf("outcomes %v", got)
	}
}

// A manager that has lost its lease returns at once, and main ends the process:
// there is no drain, or only the beginning of one.
func TestAfterALostLeaseTheNextProcessDeliversWhatWasPending(t *testing.T) {
	ep := eventstest.NewEndpoint(eventstest.WithWindow(0))
	defer ep.Close()
	proceed := make(chan struct{})
	ep.Behave(func(w http.ResponseWriter, r *http.Request, normal http.Handler) {
		<-proceed
		normal.ServeHTTP(w, r)
	})
	lease := &lock{}
	mgr := newManager(t, ctrl.Options{LeaderElection: true, LeaderElectionResourceLockInterface: lease,
		LeaseDuration: ptr(600 * time.Millisecond), RenewDeadline: ptr(300 * time.Millisecond), RetryPeriod: ptr(50 * time.Millisecond)})
	dir := t.TempDir()
	recorder, err := events.NewRecorder(mgr, logr.Discard(), ep.URL(), controllerName, events.WithJournal(dir),
		events.WithMetricsRegisterer(prometheus.NewRegistry()))
	must(t, err)
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(t.Context()) }()
	<-mgr.Elected()
	for i := range 100 {
		recorder.Event(pod(fmt.Sprint(i%7)), "Normal", "Testing", fmt.Sprint("event ", i))
	}
	lease.lose()
	wantError(t, <-ended, "leader election lost")
	killed := crash(t, dir)

	_ = recorder.Shutdown(over())
	if n := len(ep.Events()); n != 0 {
		t.Errorf("%d events were delivered by then: this test shows nothing", n)
	}
	ep.Behave(nil)
	close(proceed)
	next := newHarness(t, ep.URL(), events.WithJournal(killed))
	next.settled()
	next.wantOutcomes(map[string]int{"delivered": 100})
	next.closed()
	// The cancelled posts of the first may still be answered now.
	var got []events.Event
	seen := map[string]bool{}
	for _, e := range ep.Events() {
		if !seen[e.Message] {
			got = append(got, e)
		}
		seen[e.Message] = true
	}
	if n := wantOrder(t, got); n != 100 {
		t.Errorf("%d of 100 events arrived", n)
	}
}

// The format of an entry's data: a journal of today must be read by what comes later.
func TestAnEntryIsTheKeyTheTimeAndThePayload(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		tr := eventstest.NewTransport()
		defer tr.Close()
		h := newHarness(t, tr.URL(), on(tr), events.WithJournal(dir))
		h.closed()
		text, err := json.Marshal(events.Event{Message: "event 1", Severity: "error", Metadata: map[string]string{"a": "b"}})
		must(t, err)
		j, _, err := journal.Open(journalFile(t, dir))
		must(t, err)
		head := []byte{0xef, 0xcd, 0xab, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0}
		head = append(head, 0, 0x90, 0x79, 0x9f, 0x43, 0x4c, 0x23, 0x0d) // ten minutes before the year 2000
		must(t, j.Append([]journal.Entry{{ID: 3, Data: slices.Concat(head, text)}}, nil))
		must(t, j.Close())
		next := newHarness(t, tr.URL(), on(tr), events.WithJournal(dir))
		next.settled()
		next.closed()
		all := tr.Requests()
		if len(all) != 1 {
			t.Fatalf("outcomes %v", next.outcomes())
		}
		r := all[0]
		if r.Header.Get("Idempotency-Key") != "abcdef-7" || r.Event.Message != "event 1" || r.Event.Severity != "error" || r.Event.Metadata["a"] != "b" ||
			r.Event.Timestamp.Unix() != time.Date(1999, 12, 31, 23, 50, 0, 0, time.UTC).Unix() {
			t.Errorf("posted %v with key %q", r.Event, r.Header.Get("Idempotency-Key"))
		}
	})
}
