package events_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	events "github.com/eventrecorder/events"
	"github.com/eventrecorder/events/eventstest"
)

// bubble runs a test in virtual time, with an endpoint in memory.
func bubble(t *testing.T, test func(t *testing.T, tr *eventstest.Transport), opts ...eventstest.Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		tr := eventstest.NewTransport(opts...)
		defer tr.Close()
		test(t, tr)
	})
}

// attempts returns when the requests came, since start.
func attempts(tr *eventstest.Transport, start time.Time) []time.Duration {
	var at []time.Duration
	for _, r := range tr.Requests() {
		at = append(at, r.Time.Sub(start))
	}
	return at
}

// wantWaits checks the times between requests against the most that each may
// be; the least is half of that.
func wantWaits(t *testing.T, at []time.Duration, most ...time.Duration) {
	t.Helper()
	if len(at) != len(most)+1 {
		t.Fatalf("%d attempts at %v, want %d", len(at), at, len(most)+1)
	}
	for i, m := range most {
		if wait := at[i+1] - at[i]; wait < m/2 || wait > m {
			t.Errorf("wait %d is %v, want %v to %v", i+1, wait, m/2, m)
		}
	}
}

// maxStrikes is the default of WithRetryMax.
const maxStrikes = 9

// The whole schedule: what the endpoint answers, what becomes of the event, and
// how long at most the recorder waits between its attempts.
func TestRetrySchedule(t *testing.T) {
	s := time.Second
	status := eventstest.Status
	after := func(code int, value string) eventstest.Behavior {
		return eventstest.Respond(code, http.Header{"Retry-After": {value}}, "")
	}
	// Of a lone event each 5xx but the first is half a strike.
	lone := slices.Concat([]time.Duration{s, 2 * s, 4 * s, 8 * s}, slices.Repeat([]time.Duration{10 * s}, 2*maxStrikes-4))
	wait := func(least, most time.Duration) []events.Option {
		return []events.Option{events.WithRetryWait(least, most)}
	}
	for _, test := range []struct {
		name    string
		answers []eventstest.Behavior // the last one stands
		outcome string
		waits   []time.Duration
		exactly bool // the waits are not spread
		opts    []events.Option
	}{
		{name: "202", answers: []eventstest.Behavior{nil}, outcome: "delivered"},
		{name: "200", answers: []eventstest.Behavior{status(200)}, outcome: "delivered"},
		{name: "429", answers: []eventstest.Behavior{after(429, "300")}, outcome: "duplicate"},
		{name: "reset, 429 for five minutes", answers: []eventstest.Behavior{eventstest.Reset(), after(429, "300")}, outcome: "unconfirmed", waits: []time.Duration{s}},
		{name: "503, 503, 429 for five minutes", answers: []eventstest.Behavior{status(503), status(503), after(429, "300")}, outcome: "duplicate", waits: []time.Duration{s, 2 * s}},
		{name: "500 always", answers: []eventstest.Behavior{status(500)}, outcome: "exhausted", waits: lone},
		{name: "599 always", answers: []eventstest.Behavior{status(599)}, outcome: "exhausted", waits: lone},
		{name: "500 twice", answers: []eventstest.Behavior{status(500), status(500), nil}, outcome: "delivered", waits: []time.Duration{s, 2 * s}},
		{name: "503 with a long Retry-After", answers: []eventstest.Behavior{after(503, "3600"), nil}, outcome: "delivered", waits: []time.Duration{30 * s}, exactly: true},
		{name: "503 with a long Retry-After and a longest wait", answers: []eventstest.Behavior{after(503, "3600"), nil}, outcome: "delivered", waits: []time.Duration{45 * s}, exactly: true, opts: wait(s, 45*s)},
		{name: "503 with a Retry-After above the longest wait", answers: []eventstest.Behavior{after(503, "20"), nil}, outcome: "delivered", waits: []time.Duration{7 * s}, exactly: true, opts: wait(s, 7*s)},
		{name: "503 with a short Retry-After", answers: []eventstest.Behavior{after(503, "13"), nil}, outcome: "delivered", waits: []time.Duration{13 * s}, exactly: true},
		{name: "503 with a Retry-After, in an outage too", answers: []eventstest.Behavior{after(503, "20"), after(503, "20"), after(503, "20"), after(503, "20"), after(503, "20"), nil}, outcome: "delivered", waits: slices.Repeat([]time.Duration{20 * s}, 5), exactly: true},
		{name: "500 with a Retry-After, which only 503 may have", answers: []eventstest.Behavior{after(500, "3600"), nil}, outcome: "delivered", waits: []time.Duration{s}},
		{name: "no retries", answers: []eventstest.Behavior{status(500)}, outcome: "exhausted", waits: []time.Duration{s}, opts: []events.Option{events.WithRetryMax(0)}},
		{name: "waits never exceed the maximum", answers: []eventstest.Behavior{status(500)}, outcome: "exhausted", waits: []time.Duration{2 * s, 3 * s, 3 * s, 3 * s, 3 * s, 3 * s}, opts: []events.Option{events.WithRetryMax(3), events.WithRetryWait(2*s, 3*s)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, tr *eventstest.Transport) {
				last := len(test.answers) - 1
				tr.BehaveNext(test.answers[:last]...)
				tr.Behave(test.answers[last])
				h := newHarness(t, tr.URL(), append(test.opts, on(tr))...)
				start := time.Now()
				h.say("a", "hello")
				h.settled()
				h.wantOutcomes(map[string]int{test.outcome: 1})
				at := attempts(tr, start)
				wantWaits(t, at, test.waits...)
				for i, want := range test.waits {
					if wait := at[i+1] - at[i]; test.exactly && wait != want {
						t.Errorf("wait %d is %v, want %v", i+1, wait, want)
					}
				}
				h.shutdownNow()
			})
		})
	}
}

// script is a transport that answers request by request; the last one stands.
type script struct {
	n    atomic.Int64
	next []func(*http.Request) (*http.Response, error)
}

func scripted(next ...func(*http.Request) (*http.Response, error)) *script {
	return &script{next: next}
}

func (s *script) Client() *http.Client { return &http.Client{Transport: s} }

func (s *script) RoundTrip(r *http.Request) (*http.Response, error) {
	n := int(s.n.Add(1)) - 1
	return s.next[min(n, len(s.next)-1)](r)
}

func answerStatus(code int) func(*http.Request) (*http.Response, error) {
	return func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: code, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
	}
}

func failWith(err error) func(*http.Request) (*http.Response, error) {
	return func(*http.Request) (*http.Response, error) { return nil, err }
}

func noAnswer(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, context.Cause(r.Context())
}

var (
	errRefused = &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	errReset   = &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
)

// A 429 is a certain duplicate only if no attempt before it may have arrived
// without an answer of the endpoint's own.
func TestADuplicateIsUnconfirmedAfterAnAttemptThatMayHaveArrived(t *testing.T) {
	type answer = func(*http.Request) (*http.Response, error)
	for _, test := range []struct {
		name    string
		before  []answer
		outcome string
	}{
		{"nothing", nil, "duplicate"},
		{"refused", []answer{failWith(errRefused)}, "duplicate"},
		{"no such host", []answer{failWith(&net.DNSError{Err: "no such host", IsNotFound: true})}, "duplicate"},
		{"a certificate fault", []answer{failWith(&tls.CertificateVerificationError{Err: certExpired})}, "duplicate"},
		{"500", []answer{answerStatus(500)}, "duplicate"},
		{"503", []answer{answerStatus(503)}, "duplicate"},
		{"502", []answer{answerStatus(502)}, "unconfirmed"},
		{"504", []answer{answerStatus(504)}, "unconfirmed"},
		{"a reset", []answer{failWith(errReset)}, "unconfirmed"},
		{"a closed connection", []answer{failWith(io.EOF)}, "unconfirmed"},
		{"no answer in time", []answer{noAnswer}, "unconfirmed"},
		{"a reset and then what is certain", []answer{failWith(errReset), failWith(errRefused), answerStatus(503)}, "unconfirmed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tr := scripted(append(test.before, answerStatus(429))...)
				h := newHarness(t, "http://endpoint/", on(tr))
				h.say("a", "m")
				h.settled()
				h.wantOutcomes(map[string]int{test.outcome: 1})
				if n := int(tr.n.Load()); n != len(test.before)+1 {
					t.Errorf("%d posts", n)
				}
				if lines := h.log.errors(); len(lines) != 0 {
					t.Errorf("errors: %v", lines)
				}
				lines := h.log.matching(func(l logLine) bool { return l.Level == 0 })
				if test.outcome == "duplicate" {
					if len(lines) != 0 || len(h.log.with(msgDuplicate)) != 1 {
						t.Errorf("log: %v", h.log.lines)
					}
				} else if len(lines) != 1 || lines[0].Message != msgUnconfirmed || lines[0].Keys["status"] != 429 ||
					lines[0].Keys["name"] != "a" || lines[0].Keys["attempts"] != len(test.before)+1 {
					t.Errorf("log: %v", lines)
				}
				h.shutdownNow()
			})
		})
	}
}

// The client that goes first makes notification-controller drop the event, whose
// key it has noted; with the default limit it does not go.
func TestAnEndpointThatNeedsSevenSecondsAndNotesTheKeyFirst(t *testing.T) {
	for name, test := range map[string]struct {
		opts  []events.Option
		want  string
		posts int
	}{
		"with defaults":        {nil, "delivered", 1},
		"with a limit of five": {[]events.Option{events.WithTimeout(5 * time.Second)}, "unconfirmed", 2},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, tr *eventstest.Transport) {
				tr.Behave(eventstest.Delay(7 * time.Second))
				h := newHarness(t, tr.URL(), append(test.opts, on(tr))...)
				h.say("a", "m")
				if _, err := tr.WaitRequests(t.Context(), 1); err != nil {
					t.Fatal(err)
				}
				tr.Behave(nil) // for a 429 nobody has to wait
				h.settled()
				h.wantOutcomes(map[string]int{test.want: 1})
				if n := len(tr.Requests()); n != test.posts {
					t.Errorf("%d posts", n)
				}
				h.shutdownNow()
			})
		})
	}
}

func TestAnAttemptWithoutAnAnswerIsTriedAgain(t *testing.T) {
	for name, fail := range map[string]func(*http.Request) (*http.Response, error){
		"hangs": noAnswer, "reset": failWith(errReset), "refused": failWith(errRefused), "closed": failWith(io.EOF),
		"the client's own timeout": failWith(context.DeadlineExceeded),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tr := scripted(fail, fail, answerStatus(202))
				h := newHarness(t, "http://endpoint/", on(tr))
				h.say("a", "m")
				h.settled()
				h.wantOutcomes(map[string]int{"delivered": 1})
				h.shutdownNow()
			})
		})
	}
}

// Row by row what an answer that is no success and no duplicate means.
func TestAnswersThatAreFinalCostOneAttemptAndAreLogged(t *testing.T) {
	for _, code := range []int{300, 301, 302, 303, 304, 400, 401, 403, 404, 405, 408, 413, 422, 451, 501} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			bubble(t, func(t *testing.T, tr *eventstest.Transport) {
				tr.Behave(eventstest.Respond(code, http.Header{"Location": {"http://elsewhere/"}}, "because I say so"))
				h := newHarness(t, tr.URL(), on(tr))
				start := time.Now()
				h.say("a", "hello")
				h.settled()
				h.wantOutcomes(map[string]int{"rejected": 1})
				if took := time.Since(start); took != 0 || len(tr.Requests()) != 1 || tr.Requests()[0].Method != http.MethodPost {
					t.Errorf("took %v, requests %+v", took, tr.Requests())
				}
				lines := h.log.errors()
				if len(lines) != 1 || lines[0].Message != msgLost || lines[0].Keys["status"] != code ||
					lines[0].Keys["body"] != "because I say so" || lines[0].Keys["outcome"] != "rejected" || lines[0].Keys["name"] != "a" {
					t.Errorf("error lines %v", lines)
				}
				h.shutdownNow()
			})
		})
	}
}

func TestRedirectsThatKeepThePostAreFollowed(t *testing.T) {
	for _, code := range []int{307, 308} {
		bubble(t, func(t *testing.T, tr *eventstest.Transport) {
			tr.BehaveNext(eventstest.Respond(code, http.Header{"Location": {"http://elsewhere/"}}, ""))
			h := newHarness(t, tr.URL(), on(tr))
			h.say("a", "hello")
			h.settled()
			h.wantOutcomes(map[string]int{"delivered": 1})
			if got := messages(tr.Events()); !slices.Equal(got, []string{"hello"}) {
				t.Errorf("arrived: %v", got)
			}
		})
	}
}

func TestEndlessRedirectsAreRejected(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		tr.Behave(eventstest.Respond(307, http.Header{"Location": {"http://elsewhere/"}}, ""))
		h := newHarness(t, tr.URL(), on(tr))
		h.say("a", "hello")
		h.settled()
		h.wantOutcomes(map[string]int{"rejected": 1})
		h.shutdownNow()
	})
}

func TestExhaustedIsLoggedWithStatusAttemptsAndBody(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		tr.Behave(eventstest.Respond(500, nil, "out of order "+strings.Repeat("x", 5000)))
		h := newHarness(t, tr.URL(), on(tr))
		h.say("a", "hello")
		h.settled()
		lines := h.log.errors()
		if len(lines) != 1 || lines[0].Keys["outcome"] != "exhausted" || lines[0].Keys["status"] != 500 || lines[0].Keys["attempts"] != 2*maxStrikes+1 {
			t.Fatalf("error lines %v", lines)
		}
		if body := lines[0].Keys["body"]; body != "out of order "+strings.Repeat("x", 240)+"…" { // 256 bytes
			t.Errorf("body %q", body)
		}
		h.shutdownNow()
	})
}

func TestADuplicateIsQuiet(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		h := newHarness(t, tr.URL(), on(tr))
		for range 22 {
			h.say("a", "the same")
			h.settled() // or they would be folded together
		}
		h.wantOutcomes(map[string]int{"delivered": 1, "duplicate": 21})
		if lines := h.log.matching(func(l logLine) bool { return l.Level <= 0 }); len(lines) != 0 {
			t.Errorf("logged: %v", lines)
		}
		if n := len(h.log.with(msgDuplicate)); n != 21 {
			t.Errorf("%d duplicates logged at verbosity 1, want 21", n)
		}
	})
}

func TestAnHourOfOutageLosesNothingAndKeepsTheOrder(t *testing.T) {
	for name, fail := range map[string]func(*eventstest.Transport){
		"refuses": func(tr *eventstest.Transport) { tr.Down() },
		"hangs":   func(tr *eventstest.Transport) { tr.Behave(eventstest.Hang()) },
		"500":     func(tr *eventstest.Transport) { tr.Behave(eventstest.Status(500)) },
		"502":     func(tr *eventstest.Transport) { tr.Behave(eventstest.Status(502)) },
		"503":     func(tr *eventstest.Transport) { tr.Behave(eventstest.Status(503)) },
		"504":     func(tr *eventstest.Transport) { tr.Behave(eventstest.Status(504)) },
		"resets":  func(tr *eventstest.Transport) { tr.Behave(eventstest.Reset()) },
	} {
		within := 15 * time.Second
		if name == "hangs" {
			within = 30 * time.Second
		}
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, tr *eventstest.Transport) {
				h := newHarness(t, tr.URL(), on(tr))
				h.log.quiet = true
				fail(tr)
				// 4,000 events, the first of them nearly an hour old in the end.
				for i := range 4000 {
					h.say(fmt.Sprint("object", i%1000), fmt.Sprint("event ", i))
					time.Sleep((time.Hour - time.Minute) / 4000)
				}
				time.Sleep(15 * time.Second)
				h.wantOutcomes(map[string]int{"pending": 4000})
				if up := h.value("event_recorder_endpoint_up"); up != 0 {
					t.Error("endpoint_up is 1")
				}
				if err := tr.Up(); err != nil {
					t.Fatal(err)
				}
				tr.Behave(nil)
				back := time.Now()
				h.settled()
				if took := time.Since(back); took > within {
					t.Errorf("took %v after the endpoint was back", took)
				} else {
					t.Logf("all delivered %v after the endpoint was back", took)
				}
				h.wantOutcomes(map[string]int{"delivered": 4000})
				if n := wantOrder(t, tr.Events()); n != 4000 {
					t.Errorf("%d events arrived", n)
				}
				if up := h.value("event_recorder_endpoint_up"); up != 1 {
					t.Error("endpoint_up is 0")
				}
				if out, over, lines := h.log.with(msgOutage), h.log.with(msgOutageOver), h.log.matching(func(logLine) bool { return true }); len(out) != 1 || len(over) != 1 || len(lines) != 2 {
					t.Errorf("log: %v", lines)
				} else if over[0].Keys["kept"].(int) < 3960 {
					t.Errorf("log: %v", over)
				}
			}, eventstest.WithWindow(0))
		})
	}
}

func TestDeliveryResumesWithoutNewEvents(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		h := newHarness(t, tr.URL(), on(tr))
		tr.Down()
		h.say("a", "waits")
		time.Sleep(30 * time.Minute)
		_ = tr.Up()
		h.settled()
		h.wantOutcomes(map[string]int{"delivered": 1})
	})
}

func TestTheFirstPostOfAnObjectThatFailsIsNotOvertaken(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		tr.BehaveNext(eventstest.Status(503), eventstest.Status(503))
		h := newHarness(t, tr.URL(), on(tr))
		for i := range 10 {
			h.say("a", fmt.Sprint("event ", i))
		}
		h.settled()
		if n := wantOrder(t, tr.Events()); n != 10 {
			t.Errorf("%d events arrived", n)
		}
	})
}

func TestObjectsDoNotWaitForEachOther(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		tr.BehaveNext(eventstest.Hang())
		h := newHarness(t, tr.URL(), on(tr))
		start := time.Now()
		h.say("slow", "slow 1")
		synctest.Wait()
		h.say("fast", "fast 1")
		if _, err := tr.Wait(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("the other object waited %v", took)
		}
		h.settled()
	})
}

// An endpoint that goes up and down, with phases longer than the longest wait
// between attempts and the time of one, loses nothing.
func TestAFlappingEndpointLosesNothing(t *testing.T) {
	for _, test := range []struct {
		name     string
		down     func(*eventstest.Transport)
		off, on_ time.Duration
	}{
		{"refuses", func(tr *eventstest.Transport) { tr.Down() }, 10 * time.Second, 10 * time.Second},
		{"refuses for long", func(tr *eventstest.Transport) { tr.Down() }, 50 * time.Second, 9 * time.Second},
		{"hangs", func(tr *eventstest.Transport) { tr.Behave(eventstest.Hang()) }, 24 * time.Second, 14 * time.Second},
		{"503", func(tr *eventstest.Transport) { tr.Behave(eventstest.Status(503)) }, 17 * time.Second, 9 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, tr *eventstest.Transport) {
				h := newHarness(t, tr.URL(), on(tr))
				n := 0
				phase := func(d time.Duration) {
					for range int(d / (200 * time.Millisecond)) {
						h.say(fmt.Sprint("object", n%30), fmt.Sprint("event ", n))
						n++
						time.Sleep(200 * time.Millisecond)
					}
				}
				for range 30 {
					test.down(tr)
					phase(test.off)
					_ = tr.Up()
					tr.Behave(nil)
					phase(test.on_)
				}
				h.settled()
				h.wantOutcomes(map[string]int{"delivered": n})
				if got := wantOrder(t, tr.Events()); got != n {
					t.Errorf("%d events arrived, want %d", got, n)
				}
			}, eventstest.WithWindow(0))
		})
	}
}

// poisoned fails the requests that speak of poison, and only those.
func poisoned(fail eventstest.Behavior) eventstest.Behavior {
	return func(w http.ResponseWriter, r *http.Request, normal http.Handler) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		if bytes.Contains(body, []byte("poison")) {
			fail(w, r, normal)
			return
		}
		normal.ServeHTTP(w, r)
	}
}

func TestAPoisonEventIsGivenUpWhileOthersPass(t *testing.T) {
	for name, fail := range map[string]eventstest.Behavior{
		"times out": eventstest.Hang(), "resets": eventstest.Reset(), "502": eventstest.Status(502),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, tr *eventstest.Transport) {
				h := newHarness(t, tr.URL(), on(tr))
				tr.Behave(poisoned(fail))
				h.say("sick", "poison 0")
				h.say("sick", "after it 1")
				for i := range 300 {
					h.say(fmt.Sprint("healthy", i%7), fmt.Sprint("event ", i))
					time.Sleep(time.Second)
				}
				h.wantOutcomes(map[string]int{"delivered": 301, "exhausted": 1})
				if len(h.log.with(msgOutage)) != 0 {
					t.Errorf("an outage was reported though other events passed: %v", h.log.errors())
				}
				// The second attempt may come before any other event's.
				if lines := h.log.with(msgLost); len(lines) != 1 || lines[0].Keys["attempts"].(int) < maxStrikes+1 || lines[0].Keys["attempts"].(int) > maxStrikes+2 {
					t.Errorf("log: %v", lines)
				}
				h.shutdownNow()
			})
		})
	}
}

// Neither the start nor the end of an outage may pass for the fault of an
// event: what was answered just before or just after proves nothing.
func TestTheEdgesOfAnOutageAreNoFaultOfAnEvent(t *testing.T) {
	// The attempts of the first delivery end at about 5, 11, 18, 26 and 39 s.
	for seconds := range 50 {
		bubble(t, func(t *testing.T, tr *eventstest.Transport) {
			h := newHarness(t, tr.URL(), on(tr))
			// One event is taken up before the outage and answered in it.
			tr.BehaveNext(eventstest.Delay(4 * time.Second))
			h.say("slow", "event 0")
			synctest.Wait()
			tr.Behave(eventstest.Hang())
			for i := range 7 {
				h.say(fmt.Sprint("object", i), "event 0")
				time.Sleep(100 * time.Millisecond)
			}
			time.Sleep(time.Duration(seconds) * time.Second)
			tr.Behave(nil)
			// The eighth worker is free for these, while others still hang.
			for i := range 50 {
				h.say("other", fmt.Sprint("event ", i))
				time.Sleep(100 * time.Millisecond)
			}
			h.settled()
			h.wantOutcomes(map[string]int{"delivered": 58})
		})
	}
}

// A post that fails on its own just before an outage: what was answered between
// says nothing about the outage.
func TestAGlitchBeforeAnOutageIsNoFaultOfAnEvent(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		h := newHarness(t, tr.URL(), on(tr))
		for range 20 {
			for i := range 4 {
				tr.BehaveNext(eventstest.Reset(), nil)
				h.say(fmt.Sprint("object", i), fmt.Sprint("event ", time.Now().UnixNano()))
				synctest.Wait()
				time.Sleep(100 * time.Millisecond)
				h.say("other", fmt.Sprint("event ", time.Now().UnixNano()))
				time.Sleep(50 * time.Millisecond)
			}
			tr.Down()
			time.Sleep(time.Minute)
			_ = tr.Up()
			time.Sleep(time.Minute)
		}
		h.settled()
		h.wantOutcomes(map[string]int{"delivered": 160})
	}, eventstest.WithWindow(0))
}

func TestAnEventsOwnAnswersProveNothingAgainstIt(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		h := newHarness(t, tr.URL(), on(tr), events.WithRetryWait(time.Second, time.Second))
		for range 3 {
			tr.BehaveNext(eventstest.Reset(), eventstest.Status(500), eventstest.Reset(), eventstest.Status(500), eventstest.Reset())
		}
		h.say("a", "m")
		h.settled()
		h.wantOutcomes(map[string]int{"delivered": 1})
		if n := len(tr.Requests()); n != 16 {
			t.Errorf("%d posts", n)
		}
	})
}

// With one worker nothing else is answered during a delivery, so it is what is
// answered between its deliveries that counts.
func TestAPoisonEventIsGivenUpByASingleWorkerToo(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		h := newHarness(t, tr.URL(), on(tr), events.WithConcurrency(1))
		tr.Behave(poisoned(eventstest.Hang()))
		h.say("sick", "poison")
		for i := range 300 {
			h.say(fmt.Sprint("healthy", i%7), fmt.Sprint("event ", i))
			time.Sleep(time.Second)
		}
		h.settled()
		h.wantOutcomes(map[string]int{"delivered": 300, "exhausted": 1})
		if lines := h.log.with(msgLost); len(lines) != 1 || lines[0].Keys["attempts"] != maxStrikes+1 {
			t.Errorf("log: %v", lines)
		}
		h.shutdownNow()
	})
}

// An endpoint that is there for a moment every two minutes, as one that crashes
// in a loop: what it answers then is no evidence against those who wait.
func TestBlipsInAnOutageProveNothingAgainstThoseWhoWait(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		h := newHarness(t, tr.URL(), on(tr))
		h.log.quiet = true
		tr.Down()
		n := 0
		for range 25 {
			for range 200 {
				h.say(fmt.Sprint("object", n%200), fmt.Sprint("event ", n))
				n++
				time.Sleep(600 * time.Millisecond)
			}
			tr.Behave(eventstest.Delay(200 * time.Millisecond))
			_ = tr.Up()
			time.Sleep(300 * time.Millisecond)
			tr.Down()
		}
		_ = tr.Up()
		h.settled()
		got := h.outcomes()
		// Now and then one has its last attempt right after a blip.
		if got["exhausted"] > 25 || got["exhausted"]+got["delivered"] != n {
			t.Errorf("outcomes %v of %d", got, n)
		}
		t.Logf("outcomes %v", got)
		h.shutdownNow()
	}, eventstest.WithWindow(0))
}

func TestAnEventIsNotRetriedBeyondItsAge(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		tr.Behave(eventstest.Status(500))
		h := newHarness(t, tr.URL(), on(tr), events.WithRetryMax(100_000), events.WithMaxAge(time.Minute))
		start := time.Now()
		h.say("a", "m")
		h.settled()
		if took := time.Since(start); took > 2*time.Minute {
			t.Errorf("took %v", took)
		}
		h.wantOutcomes(map[string]int{"expired": 1})
		h.shutdownNow()
	})
}

func TestARetryAfterOfNothingIsNoBusyLoop(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		tr.Behave(eventstest.Respond(503, http.Header{"Retry-After": {"0"}}, ""))
		h := newHarness(t, tr.URL(), on(tr))
		h.say("a", "m")
		time.Sleep(time.Minute)
		if n := len(tr.Requests()); n < 29 || n > 62 {
			t.Errorf("%d posts in a minute, want one every 1 to 2 s", n)
		}
		h.shutdownNow()
		if lines := h.log.with(msgOutage); len(lines) != 1 || lines[0].Err == nil || lines[0].Err.Error() != "HTTP status 503" {
			t.Errorf("log: %v", lines)
		}
	})
}

// The endpoint has answered, so this is no outage.
func TestARedirectThatCannotBeFollowedIsRejected(t *testing.T) {
	refuse := func(*http.Request, []*http.Request) error { return fmt.Errorf("we do not go there") }
	for name, test := range map[string]struct {
		location string
		check    func(*http.Request, []*http.Request) error
	}{
		"refused by the client": {"http://elsewhere/", refuse}, "unreadable": {"http://%zz/", nil}, "another scheme": {"ftp://x/", nil},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, tr *eventstest.Transport) {
				tr.Behave(eventstest.Respond(307, http.Header{"Location": {test.location}}, ""))
				client := tr.Client()
				client.CheckRedirect = test.check
				client.Transport = onlyHTTP{client.Transport}
				h := newHarness(t, tr.URL(), events.WithHTTPClient(client))
				h.say("a", "m")
				h.settled()
				h.wantOutcomes(map[string]int{"rejected": 1})
				if n := len(tr.Requests()); n != 1 || len(h.log.with(msgOutage)) != 0 {
					t.Errorf("%d posts, log %v", n, h.log.lines)
				}
				h.shutdownNow()
			})
		})
	}
}

// onlyHTTP refuses other schemes as net/http's own transport does.
type onlyHTTP struct{ http.RoundTripper }

func (o onlyHTTP) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != "http" {
		return nil, fmt.Errorf("unsupported protocol scheme %q", r.URL.Scheme)
	}
	return o.RoundTripper.RoundTrip(r)
}

func TestATransportWithFaultsOfItsOwnDoesNotPanic(t *testing.T) {
	for name, answer := range map[string]roundTripper{
		"no response and no error": func(*http.Request) (*http.Response, error) { return nil, nil },
		"no body":                  func(r *http.Request) (*http.Response, error) { return &http.Response{StatusCode: 202, Request: r}, nil },
		"no body, but a length": func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 202, ContentLength: 7}, nil
		},
		"a response and an error": func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 202, Body: http.NoBody}, io.EOF
		},
		"status 0": func(*http.Request) (*http.Response, error) { return &http.Response{Body: http.NoBody}, nil },
		"status -1": func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: -1, Body: http.NoBody}, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, "http://endpoint/", events.WithHTTPClient(&http.Client{Transport: answer}))
				h.say("a", "m")
				time.Sleep(time.Minute)
				h.shutdownNow()
				if got := h.outcomes(); got["delivered"]+got["shutdown"]+got["rejected"] != 1 {
					t.Errorf("outcomes %v", got)
				}
			})
		})
	}
}

func TestATypedNilTransportMeansTheSharedOne(t *testing.T) {
	ep := eventstest.NewEndpoint()
	defer ep.Close()
	h := newHarness(t, ep.URL(), events.WithHTTPClient(&http.Client{Transport: (*http.Transport)(nil)}))
	h.say("a", "m")
	h.settled()
	h.wantOutcomes(map[string]int{"delivered": 1})
	h.shutdownNow()
}

// The context that ended with an attempt is not that of the worker's next one.
func TestAnAttemptThatTookTooLongSpoilsNoOther(t *testing.T) {
	ep := eventstest.NewEndpoint()
	defer ep.Close()
	ep.BehaveNext(eventstest.Hang())
	h := newHarness(t, ep.URL(), fast, events.WithConcurrency(1), events.WithTimeout(300*time.Millisecond))
	h.say("a", "hangs")
	for i := range 5 {
		h.say(fmt.Sprint("object", i), "does not")
	}
	h.settledWithin(10 * time.Second)
	if n := h.value("event_recorder_attempts_total", "code", "error"); n != 1 {
		t.Errorf("%v attempts without an answer, want 1", n)
	}
	h.wantOutcomes(map[string]int{"delivered": 6})
	h.shutdownNow()
}

func TestWithoutRetriesAnOutageIsNoBusyLoop(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		h := newHarness(t, tr.URL(), on(tr), events.WithRetryMax(0), events.WithConcurrency(1))
		tr.Down()
		h.say("a", "kept")
		time.Sleep(time.Minute)
		if n := h.value("event_recorder_attempts_total"); n < 29 || n > 65 {
			t.Errorf("%v attempts in a minute, want one every 1 to 2 s", n)
		}
		_ = tr.Up()
		h.settled()
		h.wantOutcomes(map[string]int{"delivered": 1})
	})
}

func TestWithoutRetriesAPoisonEventIsStillGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		h := newHarness(t, tr.URL(), on(tr), events.WithRetryMax(0))
		tr.Behave(poisoned(eventstest.Hang()))
		h.say("sick", "poison")
		for i := range 30 {
			h.say("healthy", fmt.Sprint("event ", i))
			time.Sleep(time.Second)
		}
		h.settled()
		h.wantOutcomes(map[string]int{"delivered": 30, "exhausted": 1})
		h.shutdownNow()
	})
}

func TestARepeatedEventCostsOneEntryDuringAnOutage(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		h := newHarness(t, tr.URL(), on(tr))
		tr.Down()
		h.say("b", "first")
		synctest.Wait()
		const repeats = 300 // every 2 s for 10 minutes
		var bytes float64
		var last time.Time
		for i := range repeats {
			object := pod("b")
			object.ResourceVersion = fmt.Sprint(1000 + i)
			last = time.Now()
			h.Event(object, corev1.EventTypeNormal, "DependencyNotReady", "Dependencies do not meet ready condition, retrying in 2s")
			if i == 0 {
				bytes = h.value("event_recorder_pending_bytes")
			}
			time.Sleep(2 * time.Second)
		}
		h.wantOutcomes(map[string]int{"pending": 2, "coalesced": repeats - 1})
		if now := h.value("event_recorder_pending_bytes"); now != bytes {
			t.Errorf("%v bytes, %v after the first", now, bytes)
		}
		_ = tr.Up()
		h.settled()
		taken := tr.Events()
		if len(taken) != 2 || !taken[1].Timestamp.Time.Equal(last.Truncate(time.Second)) || taken[1].InvolvedObject.ResourceVersion != "1299" {
			t.Errorf("arrived: %+v, want the second with the time of the last", taken)
		}
	})
}

func TestAnEventTooOldToBeOfUseIsDroppedWhenItsTurnComes(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		h := newHarness(t, tr.URL(), on(tr))
		tr.Down()
		h.say("a", "old 0")
		h.say("a", "old 1")
		time.Sleep(40 * time.Minute)
		h.say("a", "young 2")
		h.say("b", "young 0")
		time.Sleep(21 * time.Minute)
		h.wantOutcomes(map[string]int{"expired": 2, "pending": 2})
		if age := h.value("event_recorder_oldest_pending_age_seconds"); age != (21 * time.Minute).Seconds() {
			t.Errorf("oldest pending event is %v s old", age)
		}
		_ = tr.Up()
		h.settled()
		h.wantOutcomes(map[string]int{"expired": 2, "delivered": 2})
		h.shutdownNow()
		said := 0
		for _, line := range h.log.with(msgLost) {
			if said += line.Keys["events"].(int); line.Keys["outcome"] != "expired" || line.Keys["name"] != "a" {
				t.Errorf("log: %v", line)
			}
		}
		if said != 2 {
			t.Errorf("the lines speak of %d events, lost were 2", said)
		}
	})
}

func TestAnEventWhoseTurnComesTooLateIsDroppedThoughTheEndpointAnswers(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		tr.Behave(eventstest.Delay(4 * time.Second))
		h := newHarness(t, tr.URL(), on(tr), events.WithConcurrency(1), events.WithMaxAge(time.Minute))
		for i := range 30 {
			h.say(fmt.Sprint("object", i), "event 0")
		}
		h.settled()
		h.wantOutcomes(map[string]int{"delivered": 16, "expired": 14}) // the last at 60 s begins in time
		if n := len(tr.Requests()); n != 16 {
			t.Errorf("%d posts", n)
		}
		h.shutdownNow()
	})
}

func TestAnOutageThatOutlivesEveryEventIsNotReportedForEver(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		h := newHarness(t, tr.URL(), on(tr), events.WithMaxAge(time.Minute))
		tr.Down()
		h.say("a", "lost")
		time.Sleep(30 * time.Second)
		if h.value("event_recorder_endpoint_up") != 0 {
			t.Error("endpoint_up is 1 in the outage")
		}
		h.settled()
		synctest.Wait()
		if h.value("event_recorder_endpoint_up") != 1 {
			t.Error("endpoint_up is 0 though nobody asks the endpoint any more")
		}
		if len(h.log.with(msgOutage)) != 1 || len(h.log.with(msgOutageIdle)) != 1 {
			t.Errorf("log: %v", h.log.lines)
		}
		h.shutdownNow()
	})
}

func TestOverflowLosesTheOldestAndSaysSo(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		h := newHarness(t, tr.URL(), on(tr), events.WithQueueBytes(64<<10))
		h.log.quiet = true
		tr.Down()
		const n = 1000
		for i := range n {
			h.say(fmt.Sprint("object", i%10), fmt.Sprint("event ", i))
			if held := h.value("event_recorder_pending_bytes"); held > 64<<10 {
				t.Fatalf("%v bytes pending", held)
			}
		}
		got := h.outcomes()
		if got["overflow"] == 0 || got["overflow"]+got["pending"] != n {
			t.Fatalf("outcomes %v", got)
		}
		if lines := h.log.with(msgLost); len(lines) != 1 || lines[0].Keys["outcome"] != "overflow" || lines[0].Keys["events"] != 1 {
			t.Errorf("log: %v", lines)
		}
		_ = tr.Up()
		h.settled()
		wantOrder(t, tr.Events())
		for i := n - 10; i < n; i++ {
			if want := fmt.Sprint("event ", i); !slices.Contains(messages(tr.Events()), want) {
				t.Errorf("%q, one of the newest, was lost", want)
			}
		}
		h.shutdownNow()
	})
}

func TestANoisyObjectDoesNotPushOutTheOthers(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		h := newHarness(t, tr.URL(), on(tr), events.WithQueueBytes(64<<10))
		h.log.quiet = true
		tr.Down()
		for i := range 20 {
			h.say(fmt.Sprint("quiet", i), "event 0")
		}
		for i := range 5000 {
			h.say("noisy", fmt.Sprint("event ", i))
		}
		_ = tr.Up()
		h.settled()
		for i := range 20 {
			if !slices.ContainsFunc(tr.Events(), func(e events.Event) bool { return e.InvolvedObject.Name == fmt.Sprint("quiet", i) }) {
				t.Errorf("the event about quiet%d was lost", i)
			}
		}
		h.shutdownNow()
	})
}

func TestLossesAreLoggedAtOnceAndThenOnceAMinute(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		tr.Behave(eventstest.Status(400))
		h := newHarness(t, tr.URL(), on(tr))
		start := time.Now()
		for i := range 1500 { // for 150 s
			h.say("a", fmt.Sprint("event ", i))
			time.Sleep(100 * time.Millisecond)
		}
		h.settled()
		time.Sleep(2 * time.Minute)
		var at []time.Duration
		sum := 0
		for _, line := range h.log.errors() {
			at = append(at, line.Time.Sub(start))
			sum += line.Keys["events"].(int)
		}
		if want := []time.Duration{0, time.Minute, 2 * time.Minute, 3 * time.Minute}; !slices.Equal(at, want) {
			t.Errorf("lines at %v, want %v", at, want)
		}
		if sum != 1500 {
			t.Errorf("the lines speak of %d events, lost were 1500", sum)
		}
		h.shutdownNow()
	})
}

func TestEachOutcomeHasItsOwnLossLines(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		tr.BehaveNext(eventstest.Status(400), eventstest.Status(400))
		tr.Behave(eventstest.Status(500))
		h := newHarness(t, tr.URL(), on(tr), events.WithRetryMax(0))
		for i := range 3 {
			h.say("a", fmt.Sprint(i))
		}
		h.settled()
		h.Event(nil, "Normal", "R", "m")
		said := func() (lines []string) {
			for _, l := range h.log.with(msgLost) {
				lines = append(lines, fmt.Sprint(l.Keys["outcome"], " ", l.Keys["events"]))
			}
			return lines
		}
		want := []string{"rejected 1", "exhausted 1", "invalid 1"}
		if got := said(); !slices.Equal(got, want) {
			t.Errorf("said %v, want %v", got, want)
		}
		h.shutdownNow() // says the rest at once
		if got := said(); !slices.Equal(got, append(want, "rejected 1")) {
			t.Errorf("said %v", got)
		}
	})
}

func TestRecordingNeverWaitsForTheEndpoint(t *testing.T) {
	for name, fail := range map[string]eventstest.Behavior{
		"hangs": eventstest.Hang(), "429": eventstest.Respond(429, http.Header{"Retry-After": {"300"}}, ""),
		"503": eventstest.Respond(503, http.Header{"Retry-After": {"300"}}, ""), "resets": eventstest.Reset(),
		"answers slowly": eventstest.Delay(3 * time.Second), "answers": nil, "refuses": nil,
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, tr *eventstest.Transport) {
				tr.Behave(fail)
				if name == "refuses" {
					tr.Down()
				}
				h := newHarness(t, tr.URL(), on(tr))
				start := time.Now()
				for i := range 1000 {
					h.say(fmt.Sprint("object", i%100), fmt.Sprint("event ", i))
				}
				// Virtual time stands while anything runs: had a call waited
				// for anything, it would have moved.
				if took := time.Since(start); took != 0 {
					t.Errorf("1000 calls took %v", took)
				}
				if n := len(h.kube.events()); n != 1000 {
					t.Errorf("%d Kubernetes events", n)
				}
				h.shutdownNow()
			})
		})
	}
}

func TestNoMorePostsAtATimeThanAllowed(t *testing.T) {
	for _, limit := range []int{1, 3, 8} {
		bubble(t, func(t *testing.T, tr *eventstest.Transport) {
			var now, most atomic.Int64
			tr.Behave(func(w http.ResponseWriter, r *http.Request, normal http.Handler) {
				n := now.Add(1)
				defer now.Add(-1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				eventstest.Delay(time.Second)(w, r, normal)
			})
			h := newHarness(t, tr.URL(), on(tr), events.WithConcurrency(limit))
			for i := range 50 {
				h.say(fmt.Sprint("object", i), "event 0")
			}
			h.settled()
			if int(most.Load()) != limit {
				t.Errorf("%d posts at a time, want %d", most.Load(), limit)
			}
		})
	}
}

func TestATimeoutOfTheClientCountsUnlessTheOptionIsGiven(t *testing.T) {
	for _, test := range []struct {
		client time.Duration
		opts   []events.Option
		want   time.Duration
	}{
		{0, nil, 16 * time.Second},
		{20 * time.Second, nil, 20 * time.Second},
		{20 * time.Second, []events.Option{events.WithTimeout(time.Second)}, time.Second},
		{time.Second, nil, time.Second},
		{time.Second, []events.Option{events.WithTimeout(20 * time.Second)}, 20 * time.Second},
		{0, []events.Option{events.WithTimeout(20 * time.Second)}, 20 * time.Second},
	} {
		bubble(t, func(t *testing.T, tr *eventstest.Transport) {
			tr.BehaveNext(eventstest.Hang())
			client := tr.Client()
			client.Timeout = test.client
			h := newHarness(t, tr.URL(), append(test.opts, events.WithHTTPClient(client))...)
			start := time.Now()
			h.say("a", "m")
			h.settled()
			at := attempts(tr, start)
			if wait := at[1] - test.want; wait < time.Second/2 || wait > time.Second {
				t.Errorf("second attempt after %v, want a timeout of %v before the wait", at[1], test.want)
			}
		})
	}
}

func TestAttemptsAreCountedByStatusAndTimed(t *testing.T) {
	bubble(t, func(t *testing.T, tr *eventstest.Transport) {
		tr.BehaveNext(eventstest.Reset(), eventstest.Status(503), eventstest.Delay(time.Second))
		h := newHarness(t, tr.URL(), on(tr))
		h.say("a", "m")
		h.settled()
		for _, code := range []string{"error", "503", "202"} {
			if n := h.value("event_recorder_attempts_total", "code", code); n != 1 {
				t.Errorf("attempts with %s: %v", code, n)
			}
		}
		if n := h.value("event_recorder_attempt_duration_seconds"); n != 3 {
			t.Errorf("%v attempts timed", n)
		}
	})
}

func TestEveryBodyIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var opened, closed atomic.Int64
		statuses := []int{500, 503, 202, 429, 400, 307, 302}
		answer := roundTripper(func(r *http.Request) (*http.Response, error) {
			n := int(opened.Add(1)) - 1
			return &http.Response{StatusCode: statuses[n%len(statuses)], Request: r, Header: http.Header{"Location": {"http://elsewhere/"}},
				Body: &countingBody{Reader: strings.NewReader(strings.Repeat("x", 100<<10)), closed: &closed}}, nil
		})
		h := newHarness(t, "http://endpoint/", events.WithHTTPClient(&http.Client{Transport: answer}))
		for i := range 30 {
			h.say("a", fmt.Sprint("event ", i))
		}
		h.settled()
		if opened.Load() < 30 || opened.Load() != closed.Load() {
			t.Errorf("%d bodies, %d closed", opened.Load(), closed.Load())
		}
		h.shutdownNow()
	})
}

type countingBody struct {
	io.Reader
	closed *atomic.Int64
	once   atomic.Bool
}

func (b *countingBody) Close() error {
	if b.once.CompareAndSwap(false, true) {
		b.closed.Add(1)
	}
	return nil
}

// The connections of a client that somebody else uses too are none of ours.
func TestAFailureDoesNotCloseTheClientsIdleConnections(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(500) }))
	defer server.Close()
	transport := &countingCloser{RoundTripper: http.DefaultTransport}
	h := newHarness(t, server.URL, events.WithHTTPClient(&http.Client{Transport: transport}), events.WithRetryMax(1), events.WithRetryWait(time.Millisecond, time.Millisecond))
	h.say("a", "m")
	h.settled()
	if err := h.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	if transport.closed.Load() != 0 {
		t.Error("idle connections of the given transport were closed")
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

type countingCloser struct {
	http.RoundTripper
	closed atomic.Int64
}

func (c *countingCloser) CloseIdleConnections() { c.closed.Add(1) }
