package events_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes/scheme"

	events "github.com/eventrecorder/events"
	"github.com/eventrecorder/events/eventstest"
)

// What a person sees of an outage and of losses: the lines of the log, and
// endpoint_up.

func TestAnOutageIsSaidOnceItHasLasted(t *testing.T) {
	s := time.Second
	for _, test := range []struct {
		name        string
		fail        func(*http.Request) (*http.Response, error)
		objects     int
		lasts       time.Duration
		least, most time.Duration // after its beginning; 0: no line
	}{
		{"refused, one object", failWith(errRefused), 1, time.Minute, 10 * s, 12 * s},
		{"refused, many objects", failWith(errRefused), 100, time.Minute, 10 * s, 12 * s},
		{"500, many objects", answerStatus(500), 100, time.Minute, 10 * s, 12 * s},
		{"503, one object", answerStatus(503), 1, time.Minute, 10 * s, 12 * s},
		{"hangs, many objects", noAnswer, 100, 2 * time.Minute, 16 * s, 38 * s},
		{"refused for 3 s, one object", failWith(errRefused), 1, 3 * s, 0, 0},
		{"refused for 3 s, many objects", failWith(errRefused), 100, 3 * s, 0, 0},
		{"refused for 8 s, one object", failWith(errRefused), 1, 8 * s, 0, 0},
		{"refused for 8 s, many objects", failWith(errRefused), 100, 8 * s, 0, 0},
		{"503 for 8 s, many objects", answerStatus(503), 100, 8 * s, 0, 0},
		{"hangs for 8 s, many objects", noAnswer, 100, 8 * s, 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				h := newHarness(t, "http://endpoint/", on(roundTripperClient(func(r *http.Request) (*http.Response, error) {
					if time.Since(start) < test.lasts {
						return test.fail(r)
					}
					return answerStatus(202)(r)
				})))
				h.log.quiet = true
				for i := range test.objects {
					h.say(fmt.Sprint("object", i), "m")
				}
				var down time.Duration // when endpoint_up was first seen at 0
				for time.Since(start) < test.lasts {
					if down == 0 && h.value("event_recorder_endpoint_up") == 0 {
						down = time.Since(start)
					}
					time.Sleep(100 * time.Millisecond)
				}
				h.settled()
				if h.value("event_recorder_endpoint_up") != 1 {
					t.Error("endpoint_up is 0 in the end")
				}
				h.wantOutcomes(map[string]int{"delivered": test.objects})
				lines := h.log.matching(func(logLine) bool { return true })
				if test.least == 0 {
					if len(lines) != 0 || down != 0 {
						t.Errorf("endpoint_up 0 after %v, log: %v", down, lines)
					}
					return
				}
				if len(lines) != 2 || lines[0].Message != msgOutage || lines[1].Message != msgOutageOver {
					t.Fatalf("log: %v", lines)
				}
				at := lines[0].Time.Sub(start)
				if at < test.least || at > test.most {
					t.Errorf("said after %v, want %v to %v", at, test.least, test.most)
				}
				if down < at || down > at+200*time.Millisecond {
					t.Errorf("endpoint_up is 0 after %v, the line came after %v", down, at)
				}
				if lines[0].Keys["since"] != start.UTC().Format(time.RFC3339) || lines[0].Keys["pending"] != test.objects {
					t.Errorf("log: %v", lines[0])
				}
				outage, err := time.ParseDuration(lines[1].Keys["outage"].(string))
				if err != nil || outage < test.lasts || outage > test.lasts+20*time.Second {
					t.Errorf("log: %v", lines[1])
				}
			})
		})
	}
}

// crowd is many recorders of one controller and registry, as a controller has them
// that makes one for each event.
func crowd(t *testing.T, h *harness, tr *eventstest.Transport, n int) (recorders []*events.EventRecorder) {
	t.Helper()
	for range n {
		r, err := events.NewRecorderForScheme(scheme.Scheme, nil, logr.New(h.log), tr.URL(), controllerName, on(tr), events.WithMetricsRegisterer(h.registry))
		if err != nil {
			t.Fatal(err)
		}
		recorders = append(recorders, r)
	}
	return recorders
}

func TestRecordersOfOneControllerShareTheirLossLines(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		tr.Behave(eventstest.Status(400))
		h := newHarness(t, tr.URL(), on(tr))
		start := time.Now()
		for i, r := range crowd(t, h, tr, 300) { // for 150 s
			r.Event(pod(fmt.Sprint("object", i)), "Normal", "R", "m")
			time.Sleep(500 * time.Millisecond)
		}
		time.Sleep(2 * time.Minute)
		sum := 0
		for i, line := range h.log.errors() {
			sum += line.Keys["events"].(int)
			if at := line.Time.Sub(start); at != time.Duration(i)*time.Minute {
				t.Errorf("line %d after %v", i, at)
			}
		}
		if sum != 300 {
			t.Errorf("the lines speak of %d events, lost were 300", sum)
		}
		h.shutdownNow()
	})
}

func TestRecordersOfOneControllerShareTheirOutageLines(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		tr.Down()
		h := newHarness(t, tr.URL(), on(tr))
		h.log.quiet = true
		recorders := crowd(t, h, tr, 300)
		for i, r := range recorders {
			r.Event(pod(fmt.Sprint("object", i)), "Normal", "R", "m")
		}
		time.Sleep(5 * time.Minute)
		if lines := h.log.errors(); len(lines) != 1 || lines[0].Message != msgOutage {
			t.Errorf("log: %v", lines)
		}
		_ = tr.Up()
		for _, r := range recorders {
			if err := r.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if lines := h.log.with(msgOutageOver); len(lines) != 1 {
			t.Errorf("log: %v", lines)
		}
		h.wantOutcomes(map[string]int{"delivered": 300})
	})
}

// What is wrong now is what the log says now.
func TestTheLineOfTheMinuteShowsTheCauseOfTheNewestLoss(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		tr.BehaveNext(eventstest.Respond(400, nil, "bad request"))
		tr.Behave(eventstest.Respond(401, nil, "bad token"))
		h := newHarness(t, tr.URL(), on(tr))
		h.log.quiet = true
		const n = 6 * 60 * 3
		for i := range n { // for six hours
			h.say(fmt.Sprint("object", i), "m")
			time.Sleep(20 * time.Second)
		}
		time.Sleep(time.Minute)
		lines := h.log.errors()
		if len(lines) < 360 || len(lines) > 361 || lines[0].Keys["status"] != 400 {
			t.Fatalf("%d lines, the first %v", len(lines), lines[0])
		}
		sum := 1
		for _, line := range lines[1:] {
			sum += line.Keys["events"].(int)
			if line.Keys["status"] != 401 || line.Keys["body"] != "bad token" || line.Err.Error() != "HTTP status 401" ||
				line.Keys["name"] != fmt.Sprint("object", sum-1) || line.Keys["kind"] != "Pod" || line.Keys["attempts"] != 1 {
				t.Fatalf("the line after %d events: %v", sum, line)
			}
		}
		if sum != n {
			t.Errorf("the lines speak of %d events, lost were %d", sum, n)
		}
		h.shutdownNow()
	})
}

// Every line says whose it is, those of views with a logger of their own too.
func TestEveryLineHasTheController(t *testing.T) {
	for _, line := range provokeEveryLogLine(t) {
		if line.Keys["controller"] != controllerName {
			t.Errorf("line without its controller: %v", line)
		}
	}
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		log := &logLines{}
		tr.Down()
		for _, name := range []string{"one", "two"} {
			r, err := events.NewRecorderForScheme(scheme.Scheme, nil, logr.Discard(), tr.URL(), name, on(tr),
				events.WithEventsV1Recorder(&v1Recorder{}), events.WithMetricsRegisterer(prometheus.NewRegistry()))
			if err != nil {
				t.Fatal(err)
			}
			view := r.WithLogger(logr.New(log))
			view.Event(pod("a"), "Normal", "R", strings.Repeat("long ", 1000))
			view.Event(nil, "Normal", "R", "m")
			r.EventsV1().WithLogger(logr.New(log)).Eventf(pod("a"), &unregisteredObject{}, "Normal", "R", "A", "m")
			(&harness{EventRecorder: r}).shutdownNow()
		}
		seen := map[any]int{}
		for _, line := range log.lines {
			seen[line.Keys["controller"]]++
		}
		if len(seen) != 2 || seen["one"] != seen["two"] || seen["one"] < 4 {
			t.Errorf("lines by controller: %v", seen)
		}
	})
}

// One event above what notification-controller takes is dropped itself.
func TestOneGiantEventIsDroppedAndTheOthersStay(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		tr.Down()
		h := newHarness(t, tr.URL(), on(tr))
		h.log.quiet = true
		for i := range 1000 {
			h.say(fmt.Sprint("object", i%100), fmt.Sprint("event ", i))
		}
		h.AnnotatedEventf(pod("giant"), map[string]string{"k": strings.Repeat("x", 15<<20)}, "Normal", "R", "m")
		h.wantOutcomes(map[string]int{"pending": 1000, "overflow": 1})
		if lines := h.log.with(msgLost); len(lines) != 1 || lines[0].Keys["name"] != "giant" || !strings.Contains(lines[0].Err.Error(), "larger than 3 MiB") {
			t.Errorf("log: %v", lines)
		}
		h.shutdownNow()
	})
}

// The key tells a repeat from a new event: the same on every attempt of an event,
// and on no attempt of any other, of this recorder or another.
func TestTheIdempotencyKeyIsThatOfTheEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		keys := map[string]map[string]int{} // by message
		attempts := 0
		answer := roundTripperClient(func(r *http.Request) (*http.Response, error) {
			buf := make([]byte, 1<<16)
			n, _ := r.Body.Read(buf)
			message := strings.Split(strings.Split(string(buf[:n]), `"message":"`)[1], `"`)[0]
			mu.Lock()
			defer mu.Unlock()
			if keys[message] == nil {
				keys[message] = map[string]int{}
			}
			keys[message][r.Header.Get("Idempotency-Key")]++
			if r.Header.Get("User-Agent") != "eventrecorder-events" {
				t.Errorf("user agent %q", r.Header.Get("User-Agent"))
			}
			switch attempts++; {
			case attempts%4 == 1:
				return nil, errReset
			case attempts%4 == 3:
				return answerStatus(503)(r)
			}
			return answerStatus(202)(r)
		})
		one, two := newHarness(t, "http://endpoint/", on(answer)), newHarness(t, "http://endpoint/", on(answer))
		for i := range 50 {
			one.say(fmt.Sprint("object", i%5), fmt.Sprint("one ", i))
			two.say(fmt.Sprint("object", i%5), fmt.Sprint("two ", i))
		}
		one.settled()
		two.settled()
		seen, again := map[string]bool{}, false
		for message, of := range keys {
			if len(of) != 1 {
				t.Errorf("%s was posted with the keys %v", message, of)
			}
			for key, n := range of {
				if seen[key] || key == "" {
					t.Errorf("key %q twice", key)
				}
				seen[key] = true
				again = again || n > 1
			}
		}
		if len(keys) != 100 || !again {
			t.Errorf("%d events, one of them posted again: %v", len(keys), again)
		}
		one.shutdownNow()
		two.shutdownNow()
	})
}
