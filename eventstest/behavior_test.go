package eventstest_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eventrecorder/events/eventstest"
)

func TestBehaviorsApplyInOrderThenTheStandingOne(t *testing.T) {
	forBoth(t, func(t *testing.T, ep endpoint) {
		ep.Behave(eventstest.Status(503))
		ep.BehaveNext(eventstest.Status(500), nil)
		ep.BehaveNext(eventstest.Status(404))
		for range 5 {
			post(t, ep, `{}`)
		}
		ep.Behave(nil)
		post(t, ep, `{}`)
		if got, want := statuses(ep.Requests()), "[500 202 404 503 503 429]"; got != want {
			t.Errorf("answered %s, want %s", got, want)
		}
	})
}

func TestRespondSendsStatusHeaderAndBody(t *testing.T) {
	forBoth(t, func(t *testing.T, ep endpoint) {
		header := http.Header{"Retry-After": {"7"}, "X-A": {"1", "2"}}
		b := eventstest.Respond(503, header, "try later")
		header.Set("Retry-After", "changed")
		ep.Behave(b)
		for range 2 {
			got := post(t, ep, `{}`)
			wantStatus(t, got, 503)
			if got.body != "try later" || got.header.Get("Retry-After") != "7" || len(got.header["X-A"]) != 2 {
				t.Errorf("got body %q and header %v", got.body, got.header)
			}
		}
		if n := len(ep.Events()); n != 0 {
			t.Errorf("%d events taken, want none", n)
		}
	})
}

func TestStatusRefusesWhatIsNoFinalStatus(t *testing.T) {
	for _, code := range []int{-1, 0, 100, 199, 1000} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("Status(%d) did not panic", code)
				}
			}()
			eventstest.Status(code)
		}()
	}
}

func TestAnEventAnsweredWithSuccessByABehaviorIsTaken(t *testing.T) {
	forBoth(t, func(t *testing.T, ep endpoint) {
		ep.BehaveNext(eventstest.Status(200), eventstest.Status(204), eventstest.Status(200))
		post(t, ep, encode(t, message("one")))
		post(t, ep, encode(t, message("two")))
		post(t, ep, `no event`)
		if got, want := texts(ep.Events()), "one two"; got != want {
			t.Errorf("took %q, want %q", got, want)
		}
		wantStatus(t, post(t, ep, encode(t, message("one"))), 202)
	})
}

func TestResetIsSeenAsAConnectionReset(t *testing.T) {
	check := func(t *testing.T, ep endpoint) {
		t.Helper()
		ep.BehaveNext(eventstest.Reset())
		_, err := tryPost(t.Context(), ep, `{}`)
		var op *net.OpError
		if !errors.Is(err, syscall.ECONNRESET) || !errors.As(err, &op) {
			t.Errorf("got %v, want a connection reset", err)
		}
		if got := ep.Requests(); statuses(got) != "[0]" || string(got[0].Body) != `{}` {
			t.Errorf("recorded %+v", got)
		}
		wantStatus(t, post(t, ep, `{}`), 202)
	}
	forBoth(t, check)
	t.Run("with TLS", func(t *testing.T) {
		ep := eventstest.NewEndpoint(eventstest.WithTLS())
		defer ep.Close()
		check(t, ep)
	})
}

func TestHangLastsUntilTheClientGivesUp(t *testing.T) {
	forBoth(t, func(t *testing.T, ep endpoint) {
		ctx, giveUp := context.WithCancel(t.Context())
		ep.BehaveNext(func(w http.ResponseWriter, r *http.Request, normal http.Handler) {
			if got := ep.Requests(); statuses(got) != "[0]" {
				t.Errorf("recorded %v during the request", got)
			}
			giveUp()
			eventstest.Hang()(w, r, normal)
		})
		if _, err := tryPost(ctx, ep, `{}`); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want the error of the context", err)
		}
		ended, err := ep.WaitRequests(patience(t), 1)
		if err != nil {
			t.Fatal(err)
		}
		if got := statuses(ended); got != "[0]" {
			t.Errorf("recorded %s, want [0]", got)
		}
		wantStatus(t, post(t, ep, `{}`), 202)
	})
}

func TestARequestInProgressEndsWhenTheEndpointDoes(t *testing.T) {
	ends := map[string]func(endpoint){
		"Close": endpoint.Close,
		"Down":  endpoint.Down,
		"Down and Up": func(ep endpoint) {
			ep.Down()
			_ = ep.Up()
		},
	}
	behaviors := map[string]eventstest.Behavior{
		"hang":  eventstest.Hang(),
		"delay": eventstest.Delay(time.Hour),
	}
	for endName, end := range ends {
		for behaviorName, b := range behaviors {
			t.Run(endName+" during "+behaviorName, func(t *testing.T) {
				forBoth(t, func(t *testing.T, ep endpoint) {
					arrived := make(chan struct{})
					ep.Behave(func(w http.ResponseWriter, r *http.Request, normal http.Handler) {
						close(arrived)
						b(w, r, normal)
					})
					result := make(chan error, 1)
					go func() {
						_, err := tryPost(t.Context(), ep, `{}`)
						result <- err
					}()
					<-arrived
					end(ep)
					if err := <-result; err == nil {
						t.Error("the request was answered")
					}
					if _, err := ep.WaitRequests(patience(t), 1); err != nil {
						t.Error(err)
					}
					if n := len(ep.Events()); n != 0 {
						t.Errorf("%d events taken, want none", n)
					}
				})
			})
		}
	}
}

func TestADelayedEventIsTakenAndAnsweredWhenTheDelayIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := eventstest.NewTransport()
		start := time.Now()
		var answers sync.WaitGroup
		for _, test := range []struct{ delay, want time.Duration }{
			{15 * time.Second, 15 * time.Second}, // the longest that the handler may take
			{10 * time.Second, 10 * time.Second},
			{time.Nanosecond, time.Nanosecond},
			{0, 0},
			{-time.Second, 0},
		} {
			tr.BehaveNext(eventstest.Delay(test.delay))
			body := encode(t, message(test.delay.String()))
			answers.Go(func() {
				wantAnswer(t, tr, body, 202)
				if took := time.Since(start); took != test.want {
					t.Errorf("Delay(%v): answered after %v, want %v", test.delay, took, test.want)
				}
			})
			synctest.Wait() // until it has arrived
		}
		for _, step := range []struct {
			at             time.Duration
			taken, answers string
		}{
			{0, "0s -1s", "[0 0 0 202 202]"},
			{10*time.Second - 1, "0s -1s 1ns", "[0 0 202 202 202]"},
			{15*time.Second - 1, "0s -1s 1ns 10s", "[0 202 202 202 202]"},
			{16 * time.Second, "0s -1s 1ns 10s 15s", "[202 202 202 202 202]"},
		} {
			time.Sleep(time.Until(start.Add(step.at)))
			if got := texts(tr.Events()); got != step.taken {
				t.Errorf("after %v taken: %q, want %q", step.at, got, step.taken)
			}
			if got := statuses(tr.Requests()); got != step.answers {
				t.Errorf("after %v answered: %s, want %s", step.at, got, step.answers)
			}
		}
		answers.Wait()
	})
}

func TestWaitReturnsWhenADelayedEventIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := eventstest.NewTransport()
		tr.Behave(eventstest.Delay(10 * time.Second))
		start := time.Now()
		var answer sync.WaitGroup
		answer.Go(func() { wantAnswer(t, tr, `{}`, 202) })
		if _, err := tr.Wait(t.Context(), 1); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took != 10*time.Second {
			t.Errorf("waited %v, want 10s", took)
		}
		answer.Wait()
	})
}

func TestABehaviorCanTakeTheEventLongBeforeItsAnswer(t *testing.T) {
	forBoth(t, func(t *testing.T, ep endpoint) {
		ep.BehaveNext(func(w http.ResponseWriter, r *http.Request, normal http.Handler) {
			normal.ServeHTTP(w, r)
			eventstest.Hang()(w, r, normal)
		})
		ctx, giveUp := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() {
			_, err := tryPost(ctx, ep, `{}`)
			result <- err
		}()
		if _, err := ep.Wait(patience(t), 1); err != nil {
			t.Error(err)
		}
		giveUp()
		if err := <-result; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want the error of the context", err)
		}
		wantStatus(t, post(t, ep, `{}`), 429)
		if n := len(ep.Events()); n != 1 {
			t.Errorf("%d events taken, want 1", n)
		}
	})
}

func TestADelayDoesNotConcernWhatIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := eventstest.NewTransport()
		tr.Behave(eventstest.Delay(10 * time.Second))
		start := time.Now()
		var first sync.WaitGroup
		first.Go(func() { wantAnswer(t, tr, `{}`, 202) })
		synctest.Wait()
		for _, test := range []struct {
			body string
			want int
		}{
			{`{}`, 429}, // though the first of its kind is not taken yet
			{`x`, 400},
			{strings.Repeat(" ", 3<<20+1), 413},
		} {
			wantStatus(t, post(t, tr, test.body), test.want)
			if took := time.Since(start); took != 0 {
				t.Errorf("%d after %v, want no delay", test.want, took)
			}
		}
		first.Wait()
		if n := len(tr.Events()); n != 1 {
			t.Errorf("%d events taken, want 1", n)
		}
	})
}

// The fault that a client with a short timeout runs into: it gives up, its event
// is lost, and the retry is told that it is a duplicate.
func TestAnEventIsLostWhoseClientGaveUpDuringTheDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := eventstest.NewTransport()
		tr.Behave(eventstest.Delay(10 * time.Second))
		client := tr.Client()
		client.Timeout = 4 * time.Second
		start := time.Now()
		_, err := client.Post(tr.URL(), "", strings.NewReader(`{}`))
		if took := time.Since(start); took != 4*time.Second {
			t.Errorf("gave up after %v, want 4s", took)
		}
		var timeout net.Error
		if !errors.As(err, &timeout) || !timeout.Timeout() {
			t.Errorf("got %v, want a timeout", err)
		}
		wantStatus(t, post(t, tr, `{}`), 429)
		time.Sleep(time.Minute)
		if n := len(tr.Events()); n != 0 {
			t.Errorf("%d events taken, want none", n)
		}

		time.Sleep(5 * time.Minute) // the next tick
		wantStatus(t, post(t, tr, `{}`), 202)
		if n := len(tr.Events()); n != 1 {
			t.Errorf("%d events taken, want 1", n)
		}
		if got, want := statuses(tr.Requests()), "[0 429 202]"; got != want {
			t.Errorf("recorded %s, want %s", got, want)
		}
	})
}

// The same on a socket, where only the end of the connection tells the endpoint
// that its client has gone.
func TestTheEndpointNoticesThatTheClientOfADelayedEventGaveUp(t *testing.T) {
	check := func(t *testing.T, ep endpoint) {
		t.Helper()
		arrived := make(chan struct{})
		ep.BehaveNext(func(w http.ResponseWriter, r *http.Request, normal http.Handler) {
			close(arrived)
			eventstest.Delay(time.Hour)(w, r, normal)
		})
		ctx, giveUp := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() {
			_, err := tryPost(ctx, ep, `{}`)
			result <- err
		}()
		<-arrived
		giveUp()
		if err := <-result; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want the error of the context", err)
		}
		ended, err := ep.WaitRequests(patience(t), 1)
		if err != nil {
			t.Fatal(err)
		}
		if got := statuses(ended); got != "[0]" {
			t.Errorf("recorded %s, want [0]", got)
		}
		wantStatus(t, post(t, ep, `{}`), 429)
		if n := len(ep.Events()); n != 0 {
			t.Errorf("%d events taken, want none", n)
		}
		ep.Forget()
		wantStatus(t, post(t, ep, `{}`), 202)
	}
	forBoth(t, check)
	t.Run("with TLS", func(t *testing.T) {
		ep := eventstest.NewEndpoint(eventstest.WithTLS())
		defer ep.Close()
		check(t, ep)
	})
}

func TestAHandlerThatRunsOutOfTimeLosesTheEventAndAnswers202(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := eventstest.NewTransport()
		tr.BehaveNext(eventstest.Delay(15*time.Second + 1))
		start := time.Now()
		wantStatus(t, post(t, tr, `{}`), 202)
		if took := time.Since(start); took != 15*time.Second {
			t.Errorf("answered after %v, want 15s", took)
		}
		wantStatus(t, post(t, tr, `{}`), 429)
		if got, want := statuses(tr.Requests()), "[202 429]"; got != want {
			t.Errorf("recorded %s, want %s", got, want)
		}
		if n := len(tr.Events()); n != 0 {
			t.Errorf("%d events taken, want none", n)
		}
	})
}

func TestEventsAreInTheOrderTheyWereTakenNotOfArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := eventstest.NewTransport()
		var answers sync.WaitGroup
		for i, text := range []string{"slow", "slower", "fast"} {
			tr.BehaveNext(eventstest.Delay([]time.Duration{5 * time.Second, 9 * time.Second, 0}[i]))
			body := encode(t, message(text))
			answers.Go(func() { wantAnswer(t, tr, body, 202) })
			synctest.Wait()
		}
		answers.Wait()
		var arrived []string
		for _, r := range tr.Requests() {
			arrived = append(arrived, r.Event.Message)
		}
		if got, want := strings.Join(arrived, " "), "slow slower fast"; got != want {
			t.Errorf("arrived %q, want %q", got, want)
		}
		if got, want := texts(tr.Events()), "fast slow slower"; got != want {
			t.Errorf("taken %q, want %q", got, want)
		}
	})
}

func TestADelayReachesNormalThroughABehaviorAroundIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := eventstest.NewTransport()
		tr.Behave(func(w http.ResponseWriter, r *http.Request, normal http.Handler) {
			eventstest.Delay(3*time.Second)(w, r, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("X-Backend", "b")
				normal.ServeHTTP(w, r)
			}))
		})
		start := time.Now()
		got := post(t, tr, `{}`)
		wantStatus(t, got, 202)
		if took := time.Since(start); took != 3*time.Second || got.header.Get("X-Backend") != "b" {
			t.Errorf("answered after %v with %v", took, got.header)
		}
	})
}

func TestNormalTakesNoEventOfAClientThatHasGone(t *testing.T) {
	for _, test := range []struct {
		name    string
		context func(context.Context) context.Context
		taken   int
	}{
		{"on the context of the request", func(ctx context.Context) context.Context { return ctx }, 0},
		{"on a context that outlives it", context.WithoutCancel, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			forBoth(t, func(t *testing.T, ep endpoint) {
				ctx, giveUp := context.WithCancel(t.Context())
				ep.BehaveNext(func(w http.ResponseWriter, r *http.Request, normal http.Handler) {
					giveUp()
					<-r.Context().Done()
					defer func() { // whatever a Behavior makes of it, the event stays lost
						if p := recover(); (p == http.ErrAbortHandler) != (test.taken == 0) {
							t.Errorf("normal panicked with %v", p)
						}
						w.WriteHeader(http.StatusOK)
					}()
					normal.ServeHTTP(w, r.WithContext(test.context(r.Context())))
				})
				if _, err := tryPost(ctx, ep, `{}`); !errors.Is(err, context.Canceled) {
					t.Errorf("got %v, want the error of the context", err)
				}
				if _, err := ep.WaitRequests(patience(t), 1); err != nil {
					t.Fatal(err)
				}
				wantStatus(t, post(t, ep, `{}`), 429)
				if n := len(ep.Events()); n != test.taken {
					t.Errorf("%d events taken, want %d", n, test.taken)
				}
			})
		})
	}
}

func TestABehaviorCanTakeTheEventAndLoseTheAnswer(t *testing.T) {
	forBoth(t, func(t *testing.T, ep endpoint) {
		ep.BehaveNext(func(w http.ResponseWriter, r *http.Request, normal http.Handler) {
			normal.ServeHTTP(w, r)
			panic(http.ErrAbortHandler)
		})
		if _, err := tryPost(t.Context(), ep, `{}`); !errors.Is(err, io.EOF) {
			t.Errorf("got %v, want EOF", err)
		}
		wantStatus(t, post(t, ep, `{}`), 429)
		if got, want := statuses(ep.Requests()), "[0 429]"; got != want {
			t.Errorf("recorded %s, want %s", got, want)
		}
		if n := len(ep.Events()); n != 1 {
			t.Errorf("%d events taken, want 1", n)
		}
	})
}

func TestABehaviorSeesTheWholeRequest(t *testing.T) {
	forBoth(t, func(t *testing.T, ep endpoint) {
		ep.Behave(func(w http.ResponseWriter, r *http.Request, normal http.Handler) {
			body, err := io.ReadAll(r.Body)
			if err != nil || string(body) != `{"message":"m"}` || r.URL.Path != "/p" || r.Host == "" {
				t.Errorf("saw %q (%v) on %s%s", body, err, r.Host, r.URL.Path)
			}
			r.Header.Set("X-Client", "changed")
			normal.ServeHTTP(w, r)
		})
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, ep.URL()+"/p", strings.NewReader(`{"message":"m"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Client", "c")
		got, err := do(ep.Client(), req)
		if err != nil {
			t.Fatal(err)
		}
		wantStatus(t, got, 202)
		for who, header := range map[string]http.Header{"client": req.Header, "record": ep.Requests()[0].Header} {
			if value := header.Get("X-Client"); value != "c" {
				t.Errorf("the header of the %s became %q", who, value)
			}
		}
	})
}

func TestABehaviorThatWritesNothingAnswers200(t *testing.T) {
	forBoth(t, func(t *testing.T, ep endpoint) {
		ep.BehaveNext(
			func(http.ResponseWriter, *http.Request, http.Handler) {},
			func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { _, _ = io.WriteString(w, "ok") },
		)
		wantStatus(t, post(t, ep, `{}`), 200)
		if got := post(t, ep, `{}`); got.status != 200 || got.body != "ok" {
			t.Errorf("answered %d %q, want 200 ok", got.status, got.body)
		}
		if got, want := statuses(ep.Requests()), "[200 200]"; got != want {
			t.Errorf("recorded %s, want %s", got, want)
		}
	})
}

func TestABehaviorCanBreakOffInTheMiddleOfAnAnswer(t *testing.T) {
	ep := eventstest.NewEndpoint()
	defer ep.Close()
	ep.Behave(func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "half")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	if _, err := tryPost(t.Context(), ep, `{}`); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %v, want an unexpected EOF", err)
	}
	if got, want := statuses(ep.Requests()), "[200]"; got != want {
		t.Errorf("recorded %s, want %s: the client has seen it", got, want)
	}
}

func TestABehaviorCanTakeTheEndpointDown(t *testing.T) {
	forBoth(t, func(t *testing.T, ep endpoint) {
		ep.BehaveNext(func(w http.ResponseWriter, r *http.Request, normal http.Handler) {
			normal.ServeHTTP(w, r)
			ep.Down()
		})
		if _, err := tryPost(t.Context(), ep, `{}`); err == nil {
			t.Error("the request was answered")
		}
		if err := ep.Up(); err != nil {
			t.Fatal(err)
		}
		wantStatus(t, post(t, ep, `{}`), 429)
	})
}

func TestAPanicInABehaviorReachesTheCallerOfATransport(t *testing.T) {
	tr := eventstest.NewTransport()
	tr.Behave(func(http.ResponseWriter, *http.Request, http.Handler) { panic("a bug in the test") })
	defer func() {
		if p := recover(); p != "a bug in the test" {
			t.Errorf("recovered %v", p)
		}
		if _, err := tr.WaitRequests(patience(t), 1); err != nil {
			t.Error(err)
		}
	}()
	_, _ = tryPost(t.Context(), tr, `{}`)
}
