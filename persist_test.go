package events_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	events "github.com/eventrecorder/events"
	"github.com/eventrecorder/events/eventstest"
)

// over is a context for a Shutdown that waits for nothing.
func over() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func TestPendingEventsAreDeliveredByTheNextRecorderOnTheSameJournal(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		tr := eventstest.NewTransport()
		defer tr.Close()
		tr.Down()
		h := newHarness(t, tr.URL(), on(tr), events.WithJournal(dir))
		for i := range 100 {
			h.say(fmt.Sprint("object", i%7), fmt.Sprint("event ", i))
		}
		time.Sleep(time.Second)
		if n := h.value("event_recorder_journal_bytes"); n != float64(journalSize(t, dir)) || n < 100*200 {
			t.Errorf("journal_bytes is %v, the file has %d", n, journalSize(t, dir))
		}
		wantError(t, h.Shutdown(over()), "100 event(s) not delivered, saved in the journal") // of two causes, either
		h.wantOutcomes(map[string]int{"saved": 100})
		if n := h.value("event_recorder_journal_bytes"); n != 0 {
			t.Errorf("journal_bytes is %v after the shutdown", n)
		}

		must(t, tr.Up())
		next := newHarness(t, tr.URL(), on(tr), events.WithJournal(dir))
		next.settled()
		next.wantOutcomes(map[string]int{"delivered": 100})
		if n := wantOrder(t, tr.Events()); n != 100 {
			t.Errorf("%d events arrived", n)
		}
		if n := next.value("event_recorder_recovered_total"); n != 100 {
			t.Errorf("%v recovered", n)
		}
		if lines := next.log.with(msgRecovered); len(lines) != 1 || lines[0].Keys["recovered"] != 100 {
			t.Errorf("log: %v", lines)
		}
		next.closed()
		if n := journalSize(t, dir); n != 0 {
			t.Errorf("the journal has %d bytes after all was delivered", n)
		}
	})
}

// The promise itself, at random moments of random weather. In virtual time writing
// takes no time, so "pending for 100 ms" can be checked to the millisecond.
func TestAtEveryMomentTheJournalHasWhatHasBeenPendingFor100Milliseconds(t *testing.T) {
	for seed := range uint64(30) {
		dir := t.TempDir()
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			tr := eventstest.NewTransport(eventstest.WithWindow(0))
			defer tr.Close()
			tr.Behave(func(w http.ResponseWriter, r *http.Request, normal http.Handler) {
				time.Sleep(time.Duration(rand.IntN(1+int(seed)*20)) * time.Millisecond) // random is not safe for concurrent use
				normal.ServeHTTP(w, r)
			})
			h := newHarness(t, tr.URL(), on(tr), events.WithJournal(dir), events.WithConcurrency(4))
			recorded := map[string]time.Time{}
			down := false
			for range 60 {
				for range random.IntN(4) {
					n := len(recorded)
					message := fmt.Sprint("event ", n)
					h.Event(pod(fmt.Sprint(n%5)), "Normal", "Testing", message)
					recorded[message] = time.Now()
				}
				if seed%3 == 0 && random.IntN(10) == 0 {
					if down = !down; down {
						tr.Down()
					} else {
						must(t, tr.Up())
					}
				}
				time.Sleep(time.Duration(random.IntN(60)) * time.Millisecond)
				synctest.Wait()
				taken, kept := messages(tr.Events()), left(t, dir)
				wantOrder(t, kept)
				for message, at := range recorded {
					pending := time.Since(at)
					if pending >= 100*time.Millisecond && !slices.Contains(taken, message) && !slices.Contains(messages(kept), message) {
						t.Errorf("seed %d: %s has been pending for %v and is not in the journal", seed, message, pending)
					}
				}
				for _, e := range kept {
					at, ok := recorded[e.Message]
					if !ok || e.Timestamp.Unix() != at.Unix() {
						t.Errorf("seed %d: %q of %v was never recorded", seed, e.Message, e.Timestamp)
					}
				}
			}
			_ = tr.Up()
			h.settled()
			h.closed()
		})
	}
}

func TestARecoveredEventKeepsItsTimeAndItsKeyAndComesBeforeAnythingNew(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		tr := eventstest.NewTransport(eventstest.WithWindow(0))
		defer tr.Close()
		tr.Behave(eventstest.Status(503))
		h := newHarness(t, tr.URL(), on(tr), events.WithJournal(dir))
		time.Sleep(950 * time.Millisecond) // the next second has begun when they are written
		notes := map[string]string{"example.com/c": "3", "example.com/a": "<1>", "example.com/b": "2"}
		h.AnnotatedEventf(pod("a"), notes, "Warning", "Failed", "event %d of “a”", 1)
		h.say("b", "event 1 of b")
		h.EventsV1().Eventf(pod("c"), pod("d"), "Normal", "Testing", "Moving", "event 1 of c")
		time.Sleep(time.Minute)
		synctest.Wait()
		posted := len(tr.Requests())
		before := map[string]eventstest.Request{}
		for _, r := range tr.Requests() {
			before[r.Event.InvolvedObject.Name] = r
		}
		next := crash(t, dir)
		h.shutdownNow()
		time.Sleep(30 * time.Minute)

		tr.Behave(nil)
		again := newHarness(t, tr.URL(), on(tr), events.WithJournal(next))
		for _, name := range []string{"a", "b", "c"} {
			again.say(name, "event 2, a new one")
		}
		again.settled()
		again.wantOutcomes(map[string]int{"delivered": 6})
		again.closed()
		seen := map[string]bool{}
		for _, r := range tr.Requests()[posted:] {
			name := r.Event.InvolvedObject.Name
			was := before[name]
			if !seen[name] {
				if string(r.Body) != string(was.Body) {
					t.Errorf("posted\n%s\nbefore the restart\n%s", r.Body, was.Body)
				}
				if got, want := r.Header.Get("Idempotency-Key"), was.Header.Get("Idempotency-Key"); got != want {
					t.Errorf("key %q, before the restart %q", got, want)
				}
			} else if r.Event.Message != "event 2, a new one" || r.Header.Get("Idempotency-Key") == was.Header.Get("Idempotency-Key") {
				t.Errorf("after the recovered event came %v", r.Event)
			}
			seen[name] = true
		}
	})
}

func TestARecoveredEventMayBeADuplicateThatNobodyActedOnOrTooOld(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		tr := eventstest.NewTransport()
		defer tr.Close()
		tr.Down()
		h := newHarness(t, tr.URL(), on(tr), events.WithJournal(dir))
		h.say("a", "old 1")
		h.say("a", "old 2")
		time.Sleep(40 * time.Minute)
		h.say("b", "young 1")
		time.Sleep(time.Second)
		dir = crash(t, dir)
		h.shutdownNow()
		time.Sleep(21 * time.Minute)

		must(t, tr.Up())
		tr.Behave(eventstest.Status(429))
		next := newHarness(t, tr.URL(), on(tr), events.WithJournal(dir))
		next.settled()
		next.wantOutcomes(map[string]int{"expired": 2, "unconfirmed": 1})
		if n := len(next.log.with(msgUnconfirmed)); n != 1 {
			t.Errorf("%d lines say that an event may be lost", n)
		}
		next.closed()
	})
}

func TestASmallerQueueTakesTheNewestOfTheJournal(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		tr := eventstest.NewTransport()
		defer tr.Close()
		tr.Down()
		h := newHarness(t, tr.URL(), on(tr), events.WithJournal(dir))
		for i := range 100 {
			h.say("a", fmt.Sprint("event ", i))
		}
		h.say("b", "event "+strings.Repeat("too large ", 2000))
		time.Sleep(time.Second)
		h.shutdownNow()

		next := newHarness(t, tr.URL(), on(tr), events.WithJournal(dir), events.WithQueueBytes(8<<10))
		time.Sleep(time.Second)
		got := next.outcomes()
		if got["overflow"]+got["pending"] != 101 || got["pending"] < 5 {
			t.Errorf("outcomes %v", got)
		}
		if lines := next.log.with(msgLost); len(lines) != 1 || lines[0].Keys["events"] != got["overflow"] {
			t.Errorf("log: %v", lines)
		}
		kept := messages(left(t, dir))
		if len(kept) != got["pending"] || kept[0] != fmt.Sprint("event ", 100-len(kept)) {
			t.Errorf("the journal has %q", kept)
		}
		next.shutdownNow()

		dir := t.TempDir()
		h = newHarness(t, tr.URL(), on(tr), events.WithJournal(dir))
		h.say("b", "event "+strings.Repeat("too large ", 2000))
		h.shutdownNow()
		next = newHarness(t, tr.URL(), on(tr), events.WithJournal(dir), events.WithQueueBytes(8<<10))
		time.Sleep(time.Second)
		if kept := left(t, dir); len(kept) != 0 {
			t.Errorf("the journal has an event that was dropped")
		}
		next.wantOutcomes(map[string]int{"overflow": 1})
		next.closed()
	})
}

func TestADrainWithAJournalEndsAsSoonAsTheEndpointIsDown(t *testing.T) {
	for _, test := range []struct {
		name    string
		outage  time.Duration // how long it is down when the drain begins
		pending int
		longest time.Duration
	}{
		{"known to be down", time.Minute, 10, 0},
		{"not known yet", 0, 10, 100 * time.Millisecond},
		{"not known yet, and one event only", 0, 1, 3 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			took := map[bool]time.Duration{}
			for _, withJournal := range []bool{true, false} {
				dir := t.TempDir()
				synctest.Test(t, func(t *testing.T) {
					tr := eventstest.NewTransport()
					defer tr.Close()
					opts := []events.Option{on(tr)}
					if withJournal {
						opts = append(opts, events.WithJournal(dir))
					}
					h := newHarness(t, tr.URL(), opts...)
					tr.Down()
					for i := range test.pending {
						h.say(fmt.Sprint(i), "event 1")
					}
					time.Sleep(test.outage)
					ctx, cancel := context.WithTimeout(context.Background(), 8*time.Second)
					defer cancel()
					began := time.Now()
					err := h.Shutdown(ctx)
					took[withJournal] = time.Since(began)
					outcome := "shutdown"
					if withJournal {
						outcome = "saved"
						wantError(t, err, "saved in the journal", "the endpoint is down")
						if lines := h.log.with(msgSaved); len(lines) != 1 || lines[0].Keys["events"] != test.pending || lines[0].Level != 0 {
							t.Errorf("log: %v", lines)
						}
						if n := len(left(t, dir)); n != test.pending {
							t.Errorf("%d events are in the journal", n)
						}
					} else if err == nil || strings.Contains(err.Error(), "journal") || !errors.Is(err, context.DeadlineExceeded) {
						t.Error(err)
					}
					if n := len(h.log.with(msgLost)); (n == 1) == withJournal {
						t.Errorf("%d lines about loss", n)
					}
					h.wantOutcomes(map[string]int{outcome: test.pending})
				})
			}
			t.Logf("the drain takes %v, without a journal %v", took[true], took[false])
			if took[true] > test.longest || took[false] != 8*time.Second {
				t.Errorf("want at most %v, and 8 s", test.longest)
			}
		})
	}
}

func TestADrainWithAJournalDeliversAllToASlowEndpoint(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		tr := eventstest.NewTransport()
		defer tr.Close()
		tr.Behave(eventstest.Delay(time.Second))
		h := newHarness(t, tr.URL(), on(tr), events.WithJournal(dir), events.WithConcurrency(2))
		for i := range 20 {
			h.say(fmt.Sprint("object", i%5), fmt.Sprint("event ", i))
		}
		time.Sleep(time.Second / 2)
		if err := h.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
		h.wantOutcomes(map[string]int{"delivered": 20})
		if n := wantOrder(t, tr.Events()); n != 20 || journalSize(t, dir) != 0 {
			t.Errorf("%d events arrived, the journal has %d bytes", n, journalSize(t, dir))
		}
	})
}

func TestNothingIsWrittenWhileEventsAreDeliveredAtOnce(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		tr := eventstest.NewTransport(eventstest.WithWindow(0))
		defer tr.Close()
		tr.Behave(eventstest.Delay(70 * time.Millisecond))
		h := newHarness(t, tr.URL(), on(tr), events.WithJournal(dir))
		before, err := os.Stat(journalFile(t, dir))
		must(t, err)
		for i := range 2000 {
			h.say(fmt.Sprint("object", i), "event 1")
			time.Sleep(3 * time.Millisecond)
			if n := h.value("event_recorder_journal_bytes"); n != 0 {
				t.Fatalf("journal_bytes is %v", n)
			}
		}
		after, err := os.Stat(journalFile(t, dir))
		must(t, err)
		if after.Size() != 0 || !after.ModTime().Equal(before.ModTime()) || !os.SameFile(before, after) {
			t.Errorf("the journal was written: %d bytes, %v", after.Size(), after.ModTime())
		}
		h.settled()
		h.wantOutcomes(map[string]int{"delivered": 2000})
		h.closed()
	})
}

func TestAJournalIsWrittenAtMostEvery15Milliseconds(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		_, h := outage(t, dir)
		size, writes := int64(0), 0
		for i := range 1000 {
			h.say("a", fmt.Sprint("event ", i))
			time.Sleep(time.Millisecond)
			synctest.Wait()
			if now := journalSize(t, dir); now != size {
				size = now
				writes++
			}
		}
		if writes > 1000/15 || writes < 50 {
			t.Errorf("written %d times in a second", writes)
		}
		h.shutdownNow()
	})
}

func TestAJournalIsNotWrittenAnewWhileMostOfItIsPending(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		tr := eventstest.NewTransport()
		defer tr.Close()
		tr.Down()
		h := newHarness(t, tr.URL(), on(tr), events.WithJournal(dir))
		before, err := os.Stat(journalFile(t, dir))
		must(t, err)
		for i := range 1000 {
			h.say("a", fmt.Sprint("event ", i))
			time.Sleep(time.Millisecond)
		}
		after, err := os.Stat(journalFile(t, dir))
		must(t, err)
		if !os.SameFile(before, after) || after.Size() < 100<<10 {
			t.Errorf("another file, or one of only %d bytes", after.Size())
		}
		h.shutdownNow()
	})
}

func TestInAnOutageTheJournalStaysUnderTwiceTheQueue(t *testing.T) {
	for name, record := range map[string]func(h *harness, i int){
		"overflows":               func(h *harness, i int) { h.say(fmt.Sprint("object", i%500), fmt.Sprint("event ", i)) },
		"overflows of one object": func(h *harness, i int) { h.say("one", fmt.Sprint("event ", i)) },
		"folds":                   func(h *harness, i int) { h.say(fmt.Sprint("object", i%100), "the dependency is not ready") },
	} {
		for limit, burst := range map[int]int{64 << 10: 20, 512 << 10: 1000} {
			t.Run(fmt.Sprint(name, ", ", limit>>10, " KiB"), func(t *testing.T) {
				dir := t.TempDir()
				synctest.Test(t, func(t *testing.T) {
					tr := eventstest.NewTransport()
					defer tr.Close()
					tr.Down()
					h := newHarness(t, tr.URL(), on(tr), events.WithJournal(dir), events.WithQueueBytes(limit))
					h.log.quiet = true
					largest, size, rewritten := int64(0), int64(0), 0
					for i := range 20_000 {
						record(h, i)
						if i%burst != 0 {
							continue
						}
						time.Sleep(time.Duration(burst) * time.Second / 400)
						before := size
						if size = journalSize(t, dir); size < before {
							rewritten++
						}
						largest = max(largest, size)
					}
					t.Logf("at most %d KiB, rewritten %d times", largest>>10, rewritten)
					most := 2 * int64(limit)
					if strconv.IntSize == 32 {
						most += most / 10 // the queue charges less for the same event
					}
					if largest > most || rewritten < 3 && burst == 20 {
						t.Errorf("%d bytes with a queue of %d, rewritten %d times", largest, limit, rewritten)
					}
					time.Sleep(time.Second)
					if n := len(left(t, dir)); n != h.outcomes()["pending"] {
						t.Errorf("%d events are in the journal, outcomes %v", n, h.outcomes())
					}
					h.shutdownNow()
				})
			})
		}
	}
}
