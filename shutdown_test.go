package events_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/kubernetes/scheme"

	events "github.com/eventrecorder/events"
	"github.com/eventrecorder/events/eventstest"
)

func TestShutdownDeliversWhatIsPending(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		tr.Behave(eventstest.Delay(100 * time.Millisecond))
		h := newHarness(t, tr.URL(), on(tr))
		for i := range 200 {
			h.say(fmt.Sprint("object", i%20), fmt.Sprint("event ", i))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := h.Shutdown(ctx); err != nil {
			t.Fatal(err)
		}
		h.wantOutcomes(map[string]int{"delivered": 200})
		if n := wantOrder(t, tr.Events()); n != 200 {
			t.Errorf("%d events arrived", n)
		}
	})
}

func TestANilContextNeverEnds(t *testing.T) {
	for name, wait := range map[string]func(h *harness, ctx context.Context) error{
		"Flush":    func(h *harness, ctx context.Context) error { return h.Flush(ctx) },
		"Shutdown": func(h *harness, ctx context.Context) error { return h.Shutdown(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, tr *eventstest.Transport) {
				h := newHarness(t, tr.URL(), on(tr))
				tr.Down()
				h.say("a", "m")
				over := make(chan error, 1)
				go func() { over <- wait(h, nil) }()
				time.Sleep(10 * time.Minute)
				synctest.Wait()
				if len(over) != 0 {
					t.Errorf("it returned %v while an event was pending", <-over)
					return
				}
				_ = tr.Up()
				if err := <-over; err != nil {
					t.Error(err)
				}
				h.wantOutcomes(map[string]int{"delivered": 1})
			})
		})
	}
}

// Whatever the recorder is doing, Shutdown returns at its deadline, counts what
// is left, says how many, and leaves no goroutine: the bubble would not end.
func TestShutdownInEveryState(t *testing.T) {
	hang := eventstest.Hang()
	for _, test := range []struct {
		name    string
		events  int
		behave  eventstest.Behavior
		before  time.Duration // from recording to Shutdown
		want    map[string]int
		took    time.Duration
		outcome error
	}{
		{"before the first event", 0, nil, 0, map[string]int{}, 0, nil},
		{"after the last event", 3, nil, time.Second, map[string]int{"delivered": 3}, 0, nil},
		{"before the first post", 3, nil, 0, map[string]int{"delivered": 3}, 0, nil},
		{"during a post that ends in time", 3, eventstest.Delay(2 * time.Second), time.Second, map[string]int{"delivered": 3}, time.Second, nil},
		{"during a post that hangs", 3, hang, time.Second, map[string]int{"shutdown": 3}, 3 * time.Second, context.DeadlineExceeded},
		{"in a wait between attempts", 3, eventstest.Status(503), 8 * time.Second, map[string]int{"shutdown": 3}, 3 * time.Second, context.DeadlineExceeded},
		{"in a wait that Retry-After asked for", 3, eventstest.Respond(503, http.Header{"Retry-After": {"30"}}, ""), time.Second, map[string]int{"shutdown": 3}, 3 * time.Second, context.DeadlineExceeded},
		{"in the wait between two deliveries", 1, eventstest.Status(503), 15*time.Second + 300*time.Millisecond, map[string]int{"shutdown": 1}, 3 * time.Second, context.DeadlineExceeded},
		{"with more objects than workers", 20, hang, time.Second, map[string]int{"shutdown": 20}, 3 * time.Second, context.DeadlineExceeded},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, tr *eventstest.Transport) {
				tr.Behave(test.behave)
				h := newHarness(t, tr.URL(), on(tr))
				for i := range test.events {
					h.say(fmt.Sprint("object", i), "event 0")
				}
				time.Sleep(test.before)
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
				defer cancel()
				err := h.Shutdown(ctx)
				if !errors.Is(err, test.outcome) || (err == nil) != (test.outcome == nil) {
					t.Errorf("error %v, want %v", err, test.outcome)
				}
				if n := test.want["shutdown"]; err != nil && !strings.Contains(err.Error(), fmt.Sprint(n, " event(s)")) {
					t.Errorf("error %q does not say that %d events are lost", err, n)
				}
				if took := time.Since(start); took != test.took {
					t.Errorf("took %v, want %v", took, test.took)
				}
				h.wantOutcomes(test.want)
				if lines := h.log.with(msgLost); (len(lines) == 1) != (test.want["shutdown"] > 0) || len(lines) == 1 && lines[0].Keys["events"] != test.want["shutdown"] {
					t.Errorf("log: %v", lines)
				}
				if again := h.Shutdown(t.Context()); !errors.Is(again, err) && again != nil {
					t.Errorf("second call: %v, first: %v", again, err)
				}
			})
		})
	}
}

// The deadline falls into every part of a delivery and of the pause after it.
func TestShutdownReturnsAtItsDeadlineWhateverAWorkerWaitsFor(t *testing.T) {
	for step := range 100 {
		bubble(t, func(t *testing.T, tr *eventstest.Transport) {
			tr.Behave(eventstest.Status(503))
			h := newHarness(t, tr.URL(), on(tr))
			for i := range 10 {
				h.say(fmt.Sprint("object", i), "event 0")
			}
			deadline := time.Duration(step) * 200 * time.Millisecond
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			defer cancel()
			start := time.Now()
			if err := h.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("error %v", err)
			}
			if took := time.Since(start); took != deadline {
				t.Errorf("took %v, want %v", took, deadline)
			}
			h.wantOutcomes(map[string]int{"shutdown": 10})
		})
	}
}

func TestEveryCallerOfShutdownWaitsForTheSameEnd(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		tr.Behave(eventstest.Hang())
		h := newHarness(t, tr.URL(), on(tr))
		h.say("a", "hangs")
		synctest.Wait()
		start := time.Now()
		var wg sync.WaitGroup
		var mu sync.Mutex
		var errs []error
		for i := range 5 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(2+i)*time.Second)
				defer cancel()
				err := h.Shutdown(ctx)
				if took := time.Since(start); took != 2*time.Second {
					t.Errorf("caller %d waited %v, want until the first deadline at 2s", i, took)
				}
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			})
		}
		wg.Wait()
		for _, err := range errs {
			if err == nil || err != errs[0] {
				t.Errorf("errors differ: %v", errs)
			}
		}
		h.wantOutcomes(map[string]int{"shutdown": 1})
	})
}

func TestEventsAfterShutdownReachKubernetesAndAreCounted(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		h := newHarness(t, tr.URL(), on(tr))
		h.say("a", "before")
		if err := h.Shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i := range 5 {
			h.say("a", fmt.Sprint("after ", i))
		}
		h.wantOutcomes(map[string]int{"delivered": 1, "shutdown": 5})
		if n := len(h.kube.events()); n != 6 {
			t.Errorf("%d Kubernetes events, want 6", n)
		}
		if n := len(tr.Requests()); n != 1 {
			t.Errorf("%d posts, want 1", n)
		}
		if len(h.log.with(msgLost)) != 1 {
			t.Errorf("log: %v", h.log.errors())
		}
		if err := h.Flush(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A transport that ignores its context cannot be stopped. It must not keep
// Shutdown from returning, nor count an event twice when it returns at last.
func TestShutdownDoesNotWaitForATransportThatIgnoresItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		stubborn := roundTripper(func(r *http.Request) (*http.Response, error) {
			<-release
			return &http.Response{StatusCode: 202, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
		})
		h := newHarness(t, "http://endpoint/", events.WithHTTPClient(&http.Client{Transport: stubborn}))
		h.say("a", "m")
		synctest.Wait()
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if err := h.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		if took := time.Since(start); took > 3*time.Second {
			t.Errorf("took %v, want the deadline of 2s and a second of grace", took)
		}
		h.wantOutcomes(map[string]int{"shutdown": 1})
		close(release)
		synctest.Wait()
		h.wantOutcomes(map[string]int{"shutdown": 1})
	})
}

func TestAPostThatIsAnsweredAtTheDeadlineIsDelivered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := roundTripper(func(r *http.Request) (*http.Response, error) {
			<-r.Context().Done() // the answer is there at the moment of the cancellation
			return &http.Response{StatusCode: 202, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
		})
		h := newHarness(t, "http://endpoint/", events.WithHTTPClient(&http.Client{Transport: late}), events.WithTimeout(time.Hour))
		h.say("a", "m")
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := h.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		h.wantOutcomes(map[string]int{"delivered": 1})
	})
}

func TestFlushWaitsForEarlierEventsOnly(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		tr.Behave(eventstest.Delay(time.Second))
		h := newHarness(t, tr.URL(), on(tr))
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() { // constant load: the queue is never empty
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				case <-time.After(100 * time.Millisecond):
					for o := range 5 {
						h.say(fmt.Sprint("object", o), fmt.Sprint("event ", i))
					}
				}
			}
		})
		time.Sleep(5050 * time.Millisecond) // 50 events about each object
		start := time.Now()
		h.settled()
		// Of each object 45 or so are left, one a second.
		if took := time.Since(start); took < 40*time.Second || took > 47*time.Second {
			t.Errorf("took %v", took)
		}
		if pending := h.value("event_recorder_pending_events"); pending < 1000 {
			t.Errorf("only %v events pending: no constant load", pending)
		}
		close(stop)
		wg.Wait()
		h.shutdownNow()
	})
}

func TestFlushGivesUpWithItsContextAndChangesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		tr.Down()
		h := newHarness(t, tr.URL(), on(tr))
		h.say("a", "kept 0")
		h.say("a", "kept 1")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		err := h.Flush(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "2 event(s) pending") {
			t.Errorf("error %v", err)
		}
		if took := time.Since(start); took != time.Minute {
			t.Errorf("took %v", took)
		}
		_ = tr.Up()
		h.settled()
		h.wantOutcomes(map[string]int{"delivered": 2})
	})
}

func TestFlushOfNothingSucceedsWhateverItsContext(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		h := newHarness(t, tr.URL(), on(tr))
		h.say("a", "m")
		h.settled()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 100 {
			if err := h.Flush(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if err := h.Shutdown(ctx); err != nil {
			t.Error(err)
		}
	})
}

// A logger that calls back ends at its deadline like any other caller.
func TestALoggerThatShutsTheRecorderDownDoesNotDeadlock(t *testing.T) {
	for name, behave := range map[string]eventstest.Behavior{"while shutting down": eventstest.Hang(), "in a worker": eventstest.Status(400)} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, tr *eventstest.Transport) {
				tr.Behave(behave)
				h := newHarness(t, tr.URL(), on(tr))
				h.log.hook = func(message string) {
					if message == msgLost {
						ctx, cancel := context.WithTimeout(context.Background(), time.Second)
						defer cancel()
						_ = h.Shutdown(ctx)
					}
				}
				h.say("a", "m")
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				_ = h.Shutdown(ctx)
				if took := time.Since(start); took > 7*time.Second {
					t.Errorf("took %v", took)
				}
			})
		})
	}
}

// What is recorded after the end is said by the call that records it or by a later
// one, never by a timer: the process may have closed its log.
func TestNoLineComesByItselfAfterTheLastShutdown(t *testing.T) {
	count := func(h *harness) (lines, events int) {
		for _, line := range h.log.errors() {
			lines++
			events += line.Keys["events"].(int)
		}
		return lines, events
	}
	for name, url := range map[string]string{"with an endpoint": "http://notification-controller.test", "without one": ""} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, tr *eventstest.Transport) {
				tr.Behave(eventstest.Status(400))
				h := newHarness(t, url, on(tr))
				want := 5 // one line at once, a timer for the others
				for i := range want {
					if url == "" {
						h.Event(nil, "Normal", "R", "m")
					} else {
						h.say("a", fmt.Sprint(i))
					}
				}
				h.settled()
				if lines, events := count(h); lines != 1 || events != 1 {
					t.Errorf("%d lines about %d events before the shutdown", lines, events)
				}
				if err := h.Shutdown(t.Context()); err != nil {
					t.Fatal(err)
				}
				if lines, events := count(h); lines != 2 || events != want {
					t.Errorf("%d lines about %d events when Shutdown has returned, lost were %d", lines, events, want)
				}
				for i := range 100 {
					h.say("a", fmt.Sprint("late ", i))
					h.Event(nil, "Normal", "R", "late")
				}
				atOnce, _ := count(h)
				time.Sleep(3 * time.Minute)
				synctest.Wait()
				if lines, _ := count(h); lines != atOnce || lines > 4 {
					t.Errorf("%d lines, %d of them later", lines, lines-atOnce)
				}
				h.say("a", "much later")
				h.Event(nil, "Normal", "R", "much later")
				want += 101
				if url != "" {
					want += 101
				}
				if _, events := count(h); events != want {
					t.Errorf("the lines speak of %d events, lost were %d", events, want)
				}
				_ = h.Shutdown(t.Context())
				last, _ := count(h)
				time.Sleep(time.Hour)
				if lines, _ := count(h); lines != last {
					t.Errorf("%d lines after the last Shutdown", lines-last)
				}
			})
		})
	}
}

// Recorders that share their lines share them to the end: each Shutdown says what is
// unsaid, and after the last there is no timer left.
func TestTheLastShutdownOfRecordersThatShareTheirLinesIsTheEndOfThem(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		tr.Behave(eventstest.Status(400))
		h := newHarness(t, tr.URL(), on(tr))
		other, err := events.NewRecorderForScheme(scheme.Scheme, nil, logr.New(h.log), tr.URL(), controllerName, on(tr), events.WithMetricsRegisterer(h.registry))
		if err != nil {
			t.Fatal(err)
		}
		lost := func() (n int) {
			for _, line := range h.log.with(msgLost) {
				n += line.Keys["events"].(int)
			}
			return n
		}
		for i := range 3 {
			h.say("a", fmt.Sprint(i))
			h.settled()
			other.Event(pod("b"), "Normal", "R", fmt.Sprint(i))
			_ = other.Flush(t.Context())
		}
		if n := lost(); n != 1 {
			t.Errorf("%d said at once", n)
		}
		if err := h.Shutdown(t.Context()); err != nil || lost() != 6 {
			t.Errorf("%d of 6 said after the first Shutdown: %v", lost(), err)
		}
		other.Event(pod("b"), "Normal", "R", "the other one lives")
		_ = other.Flush(t.Context())
		if err := other.Shutdown(t.Context()); err != nil || lost() != 7 {
			t.Errorf("%d of 7 said after the last Shutdown: %v", lost(), err)
		}
		lines := len(h.log.lines)
		time.Sleep(time.Hour)
		if len(h.log.lines) != lines {
			t.Errorf("lines after the end: %v", h.log.lines[lines:])
		}
	})
}

// A transport that ignores its context answers after the end. That is neither
// counted twice nor an outage that nothing would end.
func TestAnswersAfterTheEndChangeNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stubborn := roundTripper(func(r *http.Request) (*http.Response, error) {
			time.Sleep(20 * time.Second)
			return &http.Response{StatusCode: 500, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
		})
		h := newHarness(t, "http://endpoint/", events.WithHTTPClient(&http.Client{Transport: stubborn}))
		for i := range 10 {
			h.say(fmt.Sprint("object", i), "m")
		}
		synctest.Wait()
		h.shutdownNow()
		lines := len(h.log.lines)
		time.Sleep(time.Hour)
		h.wantOutcomes(map[string]int{"shutdown": 10})
		if up := h.value("event_recorder_endpoint_up"); up != 1 {
			t.Errorf("endpoint_up is %v for ever", up)
		}
		if len(h.log.lines) != lines {
			t.Errorf("lines after the end: %v", h.log.lines[lines:])
		}
	})
}

// What the end of a shutdown cancels has not failed: it is no outage, no attempt and
// no fault of an event.
func TestAttemptsThatAShutdownCancelsHaveNotFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, "http://endpoint/", on(scripted(noAnswer)), events.WithTimeout(time.Minute))
		h.log.quiet = true
		for i := range 10 {
			h.say(fmt.Sprint("object", i), "m")
		}
		time.Sleep(20 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if err := h.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		h.wantOutcomes(map[string]int{"shutdown": 10})
		if n := h.value("event_recorder_attempts_total"); n != 0 {
			t.Errorf("%v attempts counted", n)
		}
		if lines := h.log.matching(func(logLine) bool { return true }); len(lines) != 1 || lines[0].Message != msgLost {
			t.Errorf("log: %v", lines)
		}
	})
}

// With the defaults a pod in a GitOps toolkit has 10 s from SIGTERM to SIGKILL.
func TestADrainThatIsInVainIsSaidBeforeTheGraceOfTenSecondsEnds(t *testing.T) {
	for name, fail := range map[string]func(*http.Request) (*http.Response, error){
		"refused": failWith(errRefused), "hangs": noAnswer, "503": answerStatus(503),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, "http://endpoint/", on(scripted(fail)))
				for i := range 100 {
					h.say(fmt.Sprint("object", i), "m")
				}
				time.Sleep(time.Minute)
				start := time.Now()
				sigterm, stop := context.WithCancel(context.Background())
				stop()
				if err := events.DrainOnStop(h.EventRecorder).Start(sigterm); err != nil {
					t.Error(err)
				}
				if took := time.Since(start); took != 8*time.Second {
					t.Errorf("took %v", took)
				}
				if lines := h.log.with(msgStopped); len(lines) != 1 || lines[0].Level != 0 || lines[0].Keys["pending"] != 100 || lines[0].Time != start {
					t.Errorf("log: %v", lines)
				}
				if lines := h.log.with(msgLost); len(lines) != 1 || lines[0].Keys["events"] != 100 || lines[0].Keys["outcome"] != "shutdown" {
					t.Errorf("log: %v", lines)
				}
			})
		})
	}
}

// The wait of a Retry-After is over when the drain begins, and the endpoint is well.
func TestADrainDoesNotSitOutARetryAfter(t *testing.T) {
	for name, before := range map[string]time.Duration{"in the wait": 5 * time.Second, "right at the beginning": 0} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, tr *eventstest.Transport) {
				tr.BehaveNext(eventstest.Respond(503, http.Header{"Retry-After": {"30"}}, ""))
				h := newHarness(t, tr.URL(), on(tr))
				h.say("a", "m")
				synctest.Wait()
				time.Sleep(before)
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
				defer cancel()
				if err := h.Shutdown(ctx); err != nil || time.Since(start) > time.Second {
					t.Errorf("error %v after %v", err, time.Since(start))
				}
				h.wantOutcomes(map[string]int{"delivered": 1})
				if n := len(tr.Requests()); n != 2 {
					t.Errorf("%d requests", n)
				}
			})
		})
	}
}

// In a drain waits are at most 1 s, whatever asks for more.
func TestWaitsInADrainAreShort(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		tr.BehaveNext(nil, eventstest.Respond(503, http.Header{"Retry-After": {"30"}}, ""), eventstest.Respond(503, http.Header{"Retry-After": {"30"}}, ""))
		h := newHarness(t, tr.URL(), on(tr), events.WithRetryWait(time.Minute, time.Minute))
		h.say("a", "event 0")
		h.settled()
		h.say("a", "event 1")
		start := time.Now()
		if err := h.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took != 2*time.Second {
			t.Errorf("took %v, want two waits of 1s", took)
		}
		h.wantOutcomes(map[string]int{"delivered": 2})
	})
}

// An attempt that hangs when the drain begins, or in it, must not use it up.
func TestAnAttemptThatHangsInADrainEndsAfterFourSecondsAndIsMadeAgain(t *testing.T) {
	const limit = 4 * time.Second
	for _, test := range []struct {
		name  string
		hangs int // attempts
		early time.Duration
		least time.Duration
		opts  []events.Option
	}{
		{"begun before it", 1, 10 * time.Second, limit, []events.Option{events.WithTimeout(time.Minute)}},
		{"begun at its beginning", 1, 0, limit, nil},
		{"and again in it", 2, 2 * time.Second, 2 * limit, nil},
		{"with a shorter limit of its own", 2, 0, 2 * time.Second, []events.Option{events.WithTimeout(time.Second)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, tr *eventstest.Transport) {
				tr.BehaveNext(slices.Repeat([]eventstest.Behavior{eventstest.Hang()}, test.hangs)...)
				h := newHarness(t, tr.URL(), append(test.opts, on(tr))...)
				h.say("a", "m")
				synctest.Wait()
				time.Sleep(test.early)
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
				defer cancel()
				if err := h.Shutdown(ctx); err != nil {
					t.Error(err)
				}
				most := test.least + time.Duration(test.hangs)*time.Second
				if took := time.Since(start); took < test.least || took > most {
					t.Errorf("took %v, want %v to %v", took, test.least, most)
				}
				h.wantOutcomes(map[string]int{"delivered": 1})
			})
		})
	}
}

// Flush only waits: it shortens no attempt and no wait, and takes more events.
func TestAFlushIsNoDrain(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		tr.BehaveNext(eventstest.Delay(10*time.Second), eventstest.Respond(503, http.Header{"Retry-After": {"20"}}, ""))
		h := newHarness(t, tr.URL(), on(tr))
		start := time.Now()
		h.say("a", "event 0")
		h.say("a", "event 1")
		h.settled()
		if took := time.Since(start); took != 30*time.Second {
			t.Errorf("took %v, want an answer after 10s and a wait of 20s", took)
		}
		h.say("a", "event 2")
		h.settled()
		h.wantOutcomes(map[string]int{"delivered": 3})
		h.shutdownNow()
	})
}

// A repeat of what Flush waits for takes its place in the queue, and is new.
func TestARepeatThatIsRecordedDuringAFlushDoesNotProlongIt(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		tr.Behave(eventstest.Delay(5 * time.Second))
		h := newHarness(t, tr.URL(), on(tr))
		h.say("a", "posted at once")
		synctest.Wait()
		h.say("a", "the same")
		start := time.Now()
		var flushed time.Duration
		var wg sync.WaitGroup
		wg.Go(func() {
			h.settled()
			flushed = time.Since(start)
		})
		synctest.Wait()
		for range 3 {
			time.Sleep(time.Second)
			h.say("a", "the same")
		}
		wg.Wait()
		if flushed > 5*time.Second {
			t.Errorf("Flush took %v", flushed)
		}
		h.settled()
		h.wantOutcomes(map[string]int{"delivered": 2, "coalesced": 3})
		h.shutdownNow()
	})
}

func TestFlushEndsWhenAShutdownSettlesTheRest(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		tr.Behave(eventstest.Hang())
		h := newHarness(t, tr.URL(), on(tr))
		h.say("a", "m")
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := h.Flush(context.Background()); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		h.shutdownNow()
		wg.Wait()
	})
}

func TestAnUnusedRecorderHasNoGoroutine(t *testing.T) {
	// A bubble ends only when no goroutine is left in it.
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		for range 100 {
			newHarness(t, tr.URL(), on(tr))
		}
	})
}

func TestARecorderThatIsNeverShutDownLeavesNoGoroutine(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		for i := range 100 {
			h := newHarness(t, tr.URL(), on(tr))
			h.say(fmt.Sprint("object", i), "only one")
		}
		if _, err := tr.Wait(t.Context(), 100); err != nil {
			t.Fatal(err)
		}
	})
}

func TestRecordingDuringShutdownIsCountedAndNeverPanics(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		h := newHarness(t, tr.URL(), on(tr))
		h.log.quiet = true
		var wg sync.WaitGroup
		const each = 200
		for g := range 8 {
			wg.Go(func() {
				for i := range each {
					h.say(fmt.Sprint("object", g), fmt.Sprint("event ", i))
					if i == each/2 && g == 0 {
						go func() { _ = h.Shutdown(context.Background()) }()
					}
				}
			})
		}
		wg.Wait()
		if err := h.Shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := h.outcomes()
		if got["delivered"]+got["shutdown"] != 8*each {
			t.Errorf("outcomes %v", got)
		}
		if n := wantOrder(t, tr.Events()); n != got["delivered"] {
			t.Errorf("%d arrived, %d counted", n, got["delivered"])
		}
		if n := len(h.kube.events()); n != 8*each {
			t.Errorf("%d Kubernetes events, want all", n)
		}
	})
}

func TestNilContextsAreTakenForBackground(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		h := newHarness(t, tr.URL(), on(tr))
		h.say("a", "m")
		var none context.Context
		if err := errors.Join(h.Flush(none), h.Shutdown(none)); err != nil {
			t.Error(err)
		}
		if !slices.Equal(messages(tr.Events()), []string{"m"}) {
			t.Error("not delivered")
		}
	})
}

// roundTripperClient has a client, for on.
type roundTripperClient func(*http.Request) (*http.Response, error)

func (f roundTripperClient) Client() *http.Client { return &http.Client{Transport: roundTripper(f)} }

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
