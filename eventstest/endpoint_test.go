package eventstest_test

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/eventrecorder/events"
	"github.com/eventrecorder/events/eventstest"
)

func TestRequestsKeepWhatArrivedInOrder(t *testing.T) {
	forBoth(t, func(t *testing.T, ep endpoint) {
		start := time.Now()
		for i, body := range []string{encode(t, message("one")), `x`, encode(t, message("one")), encode(t, message("two"))} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, fmt.Sprintf("%s/path/%d", ep.URL(), i), strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("X-Number", fmt.Sprint(i))
			if _, err := do(ep.Client(), req); err != nil {
				t.Fatal(err)
			}
		}
		requests := ep.Requests()
		if got, want := statuses(requests), "[202 400 429 202]"; got != want {
			t.Fatalf("recorded %s, want %s", got, want)
		}
		last := start
		for i, r := range requests {
			if r.Method != http.MethodPut || r.Path != fmt.Sprintf("/path/%d", i) || r.Header.Get("X-Number") != fmt.Sprint(i) {
				t.Errorf("request %d is %s %s with %v", i, r.Method, r.Path, r.Header)
			}
			if r.Time.Before(last) || r.Time.After(time.Now()) {
				t.Errorf("request %d arrived at %v, the one before at %v", i, r.Time, last)
			}
			last = r.Time
		}
		if string(requests[1].Body) != "x" || requests[1].Event.Message != "" {
			t.Errorf("recorded body %q and event %+v", requests[1].Body, requests[1].Event)
		}
		if requests[2].Event.Message != "one" || requests[2].Event.InvolvedObject.Kind != "App" {
			t.Errorf("recorded event %+v", requests[2].Event)
		}
		if got, want := texts(ep.Events()), "one two"; got != want {
			t.Errorf("took %q, want %q", got, want)
		}
	})
}

func TestWaitReturnsWhenEnoughEventsWereTaken(t *testing.T) {
	forBoth(t, func(t *testing.T, ep endpoint) {
		ep.BehaveNext(eventstest.Status(500), nil, nil, nil)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for _, body := range []string{`{"message":"refused"}`, `{"message":"one"}`, `{"message":"one"}`, `{"message":"two"}`} {
				_, _ = tryPost(t.Context(), ep, body)
			}
		}()
		taken, err := ep.Wait(patience(t), 2)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := texts(taken), "one two"; got != want {
			t.Errorf("took %q, want %q", got, want)
		}
		requests, err := ep.WaitRequests(patience(t), 4)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := statuses(requests), "[500 202 429 202]"; got != want {
			t.Errorf("recorded %s, want %s", got, want)
		}
		<-done
	})
}

func TestWaitRequestsLeavesOutThoseInProgress(t *testing.T) {
	forBoth(t, func(t *testing.T, ep endpoint) {
		arrived := make(chan struct{})
		ep.BehaveNext(func(w http.ResponseWriter, r *http.Request, normal http.Handler) {
			close(arrived)
			eventstest.Hang()(w, r, normal)
		})
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = tryPost(t.Context(), ep, `{"message":"hangs"}`)
		}()
		<-arrived
		post(t, ep, `{"message":"answered"}`)
		ended, err := ep.WaitRequests(patience(t), 1)
		if err != nil {
			t.Fatal(err)
		}
		if len(ended) != 1 || ended[0].Event.Message != "answered" {
			t.Errorf("got %+v", ended)
		}
		if got, want := statuses(ep.Requests()), "[0 202]"; got != want {
			t.Errorf("recorded %s, want %s", got, want)
		}
		ep.Close()
		<-done
	})
}

func TestWaitForFindsEventsOfThePastAndOfTheFuture(t *testing.T) {
	forBoth(t, func(t *testing.T, ep endpoint) {
		post(t, ep, `{"message":"one","reason":"A"}`)
		post(t, ep, `{"message":"two","reason":"B"}`)
		is := func(text string) func(events.Event) bool {
			return func(e events.Event) bool { return e.Message == text }
		}
		if got, err := ep.WaitFor(patience(t), is("one")); err != nil || got.Reason != "A" {
			t.Errorf("got %+v, %v", got, err)
		}
		done := make(chan struct{})
		seen := 0
		go func() {
			defer close(done)
			for _, text := range []string{"three", "four", "five"} {
				_, _ = tryPost(t.Context(), ep, `{"message":"`+text+`"}`)
			}
		}()
		got, err := ep.WaitFor(patience(t), func(e events.Event) bool {
			seen++
			_ = ep.Events() // a match function may ask the endpoint
			return e.Message == "five"
		})
		if err != nil || got.Message != "five" {
			t.Errorf("got %+v, %v", got, err)
		}
		if seen != 5 {
			t.Errorf("match was called %d times for 5 events", seen)
		}
		<-done
	})
}

func TestWaitingEndsWithTheContext(t *testing.T) {
	forBoth(t, func(t *testing.T, ep endpoint) {
		post(t, ep, `{}`)
		post(t, ep, `{}`)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()

		taken, err := ep.Wait(ctx, 3)
		if !errors.Is(err, context.Canceled) || len(taken) != 1 {
			t.Errorf("got %d events and %v", len(taken), err)
		}
		if want := "eventstest: waited for 3 events, 1 taken of 2 requests: context canceled"; err.Error() != want {
			t.Errorf("the error is %q, want %q", err, want)
		}
		requests, err := ep.WaitRequests(ctx, 3)
		if !errors.Is(err, context.Canceled) || len(requests) != 2 {
			t.Errorf("got %d requests and %v", len(requests), err)
		}
		if _, err := ep.WaitFor(ctx, func(events.Event) bool { return false }); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}

		if _, err := ep.Wait(ctx, 1); err != nil {
			t.Errorf("what is there already needs no waiting: %v", err)
		}
	})
}

func TestWaitingEndsWithTheEndpoint(t *testing.T) {
	forBoth(t, func(t *testing.T, ep endpoint) {
		result := make(chan error, 3)
		go func() {
			_, err := ep.Wait(t.Context(), 1)
			result <- err
		}()
		go func() {
			_, err := ep.WaitRequests(t.Context(), 1)
			result <- err
		}()
		go func() {
			_, err := ep.WaitFor(t.Context(), func(events.Event) bool { return true })
			result <- err
		}()
		ep.Close()
		for range 3 {
			if err := <-result; !errors.Is(err, http.ErrServerClosed) {
				t.Errorf("got %v, want %v", err, http.ErrServerClosed)
			}
		}
	})
}

func TestADownEndpointRefusesConnectionsUntilItIsUp(t *testing.T) {
	check := func(t *testing.T, ep endpoint) {
		t.Helper()
		url := ep.URL()
		post(t, ep, `{"message":"before"}`)
		for range 3 {
			ep.Down()
			ep.Down()
			_, err := tryPost(t.Context(), ep, `{"message":"lost"}`)
			var op *net.OpError
			if !errors.Is(err, syscall.ECONNREFUSED) || !errors.As(err, &op) || op.Op != "dial" {
				t.Errorf("got %v, want a refused connection", err)
			}
			for range 2 {
				if err := ep.Up(); err != nil {
					t.Fatal(err)
				}
			}
			wantStatus(t, post(t, ep, `{"message":"before"}`), 429)
		}
		post(t, ep, `{"message":"after"}`)
		if got, want := texts(ep.Events()), "before after"; got != want {
			t.Errorf("took %q, want %q", got, want)
		}
		if n := len(ep.Requests()); n != 5 {
			t.Errorf("%d requests, want 5: a refused one never arrived", n)
		}
		if ep.URL() != url {
			t.Errorf("the URL became %s, was %s", ep.URL(), url)
		}
	}
	forBoth(t, check)
	t.Run("with TLS", func(t *testing.T) {
		ep := eventstest.NewEndpoint(eventstest.WithTLS())
		defer ep.Close()
		check(t, ep)
	})
}

func TestUpFailsWhileSomethingElseHasThePort(t *testing.T) {
	ep := eventstest.NewEndpoint()
	defer ep.Close()
	ep.Down()
	other, err := net.Listen("tcp", address(ep))
	if err != nil {
		t.Skip(err)
	}
	if err := ep.Up(); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("got %v, want that the address is in use", err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if err := ep.Up(); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, post(t, ep, `{}`), 202)
}

func TestCloseIsFinalAndIdempotent(t *testing.T) {
	forBoth(t, func(t *testing.T, ep endpoint) {
		post(t, ep, `{"message":"m"}`)
		var closing sync.WaitGroup
		for range 4 {
			closing.Go(ep.Close)
		}
		closing.Wait()
		ep.Close()
		ep.Down()
		if err := ep.Up(); !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("Up after Close: %v, want %v", err, http.ErrServerClosed)
		}
		if _, err := tryPost(t.Context(), ep, `{}`); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("got %v, want a refused connection", err)
		}
		if got := texts(ep.Events()); got != "m" {
			t.Errorf("kept %q, want m", got)
		}
	})
}

func TestCloseLeavesNoGoroutine(t *testing.T) {
	for _, opts := range [][]eventstest.Option{nil, {eventstest.WithTLS()}} {
		before := goleak.IgnoreCurrent()
		ep := eventstest.NewEndpoint(opts...)
		arrived := make(chan struct{}, 4)
		ep.Behave(func(w http.ResponseWriter, r *http.Request, normal http.Handler) {
			arrived <- struct{}{}
			eventstest.Hang()(w, r, normal)
		})
		ep.BehaveNext(nil, eventstest.Reset())
		post(t, ep, `{}`) // leaves an idle connection
		_, _ = tryPost(t.Context(), ep, `{}`)

		silent, err := net.Dial("tcp", address(ep)) // a connection without a request
		if err != nil {
			t.Fatal(err)
		}
		var hanging sync.WaitGroup
		for range cap(arrived) {
			hanging.Go(func() { _, _ = tryPost(t.Context(), ep, `{}`) })
		}
		for range cap(arrived) {
			<-arrived
		}
		ep.Close()
		hanging.Wait()
		silent.Close()
		goleak.VerifyNone(t, before)
	}
}

func TestConcurrentDuplicatesAreTakenOnce(t *testing.T) {
	forBoth(t, func(t *testing.T, ep endpoint) {
		const posts = 32
		var all sync.WaitGroup
		for range posts {
			all.Go(func() { _, _ = tryPost(t.Context(), ep, `{}`) })
		}
		all.Wait()
		requests, err := ep.WaitRequests(patience(t), posts)
		if err != nil {
			t.Fatal(err)
		}
		count := map[int]int{}
		for _, r := range requests {
			count[r.Status]++
		}
		if count[202] != 1 || count[429] != posts-1 {
			t.Errorf("answers are %v, want one 202 and %d 429", count, posts-1)
		}
	})
}

func TestEverythingMayHappenAtOnce(t *testing.T) {
	// net/http logs what its connections suffer when the endpoint goes down.
	old := log.Writer()
	log.SetOutput(io.Discard)
	defer log.SetOutput(old)

	forBoth(t, func(t *testing.T, ep endpoint) {
		const posters, posts, times = 8, 40, 30
		var busy, waiting sync.WaitGroup
		busy.Go(func() {
			for range times {
				ep.Down()
				if err := ep.Up(); err != nil {
					t.Error(err)
				}
			}
		})
		busy.Go(func() {
			for range times {
				ep.BehaveNext(eventstest.Reset(), eventstest.Status(503), eventstest.Delay(1))
				ep.Behave(eventstest.Status(500))
				ep.Behave(nil)
				ep.Forget()
				_ = ep.Requests()
			}
		})
		waiting.Go(func() {
			if _, err := ep.WaitFor(patience(t), func(e events.Event) bool { return e.Message == "last" }); err != nil {
				t.Error(err)
			}
		})
		var mu sync.Mutex
		answered := map[int]int{}
		for p := range posters {
			busy.Go(func() {
				for i := range posts {
					got, err := tryPost(t.Context(), ep, fmt.Sprintf(`{"message":"%d %d"}`, p, i))
					mu.Lock()
					if err == nil {
						answered[got.status]++
					}
					mu.Unlock()
				}
			})
		}
		busy.Wait()
		for range 3*times + 1 { // past what is left of BehaveNext
			_, _ = tryPost(t.Context(), ep, `{"message":"last"}`)
		}
		waiting.Wait()
		ep.Close()

		recorded := map[int]int{}
		for _, r := range ep.Requests() {
			recorded[r.Status]++
		}
		for status, n := range answered {
			if recorded[status] < n {
				t.Errorf("clients got %d times %d, recorded are %d", n, status, recorded[status])
			}
		}
		if n := len(ep.Events()); n != recorded[202] {
			t.Errorf("%d events taken, %d answered with 202", n, recorded[202])
		}
	})
}

func TestWithTLSServesWhatItsOwnClientTrusts(t *testing.T) {
	// net/http logs the handshake that the stranger breaks off.
	old := log.Writer()
	log.SetOutput(io.Discard)
	defer log.SetOutput(old)

	ep := eventstest.NewEndpoint(eventstest.WithTLS())
	defer ep.Close()
	if !strings.HasPrefix(ep.URL(), "https://127.0.0.1:") {
		t.Errorf("URL is %s", ep.URL())
	}
	wantStatus(t, post(t, ep, `{}`), 202)

	transport := &http.Transport{ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	_, err := (&http.Client{Transport: transport}).Post(ep.URL(), "", strings.NewReader(`{}`))
	var unknown x509.UnknownAuthorityError
	if !errors.As(err, &unknown) {
		t.Errorf("a stranger got %v, want that the authority is unknown", err)
	}

	trusting := &http.Transport{ForceAttemptHTTP2: true}
	trusting.TLSClientConfig = ep.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	defer trusting.CloseIdleConnections()
	resp, err := (&http.Client{Transport: trusting}).Post(ep.URL(), "", strings.NewReader(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.ProtoMajor != 1 {
		t.Errorf("a client that prefers HTTP/2 got %s", resp.Proto)
	}
	if n := len(ep.Requests()); n != 2 {
		t.Errorf("%d requests arrived, want 2", n)
	}
}

func TestWithAddressSetsWhereToListen(t *testing.T) {
	for _, tls := range []bool{false, true} {
		for _, host := range []string{"[::1]", "localhost", "127.0.0.2"} {
			listener, err := net.Listen("tcp", host+":0")
			if err != nil {
				t.Logf("%s cannot be listened on here: %v", host, err)
				continue
			}
			listener.Close()
			opts := []eventstest.Option{eventstest.WithAddress(host + ":0")}
			if tls {
				opts = append(opts, eventstest.WithTLS())
			}
			ep := eventstest.NewEndpoint(opts...)
			defer ep.Close()
			if host != "localhost" && !strings.Contains(ep.URL(), "://"+host+":") {
				t.Errorf("URL is %s, want host %s", ep.URL(), host)
			}
			wantStatus(t, post(t, ep, `{}`), 202)
			ep.Down()
			if err := ep.Up(); err != nil {
				t.Error(err)
			}
			wantStatus(t, post(t, ep, `{}`), 429)
		}
	}
}

func TestAnAddressThatCannotBeListenedOnPanics(t *testing.T) {
	defer func() {
		if p, ok := recover().(string); !ok || !strings.HasPrefix(p, `eventstest: WithAddress("nowhere"): `) {
			t.Errorf("recovered %v", p)
		}
	}()
	eventstest.NewEndpoint(eventstest.WithAddress("nowhere"))
}

func TestATransportEndsARequestWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := eventstest.NewTransport()
		tr.Behave(eventstest.Hang())
		why := errors.New("why")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, why)
		defer cancel()
		start := time.Now()
		_, err := tryPost(ctx, tr, `{}`)
		if took := time.Since(start); took != time.Minute || !errors.Is(err, why) {
			t.Errorf("ended after %v with %v", took, err)
		}
		if _, err := tryPost(ctx, tr, `{}`); !errors.Is(err, why) {
			t.Errorf("got %v, want the cause", err)
		}
		if n := len(tr.Requests()); n != 1 {
			t.Errorf("%d requests arrived, want 1: the second had ended before", n)
		}
	})
}

type trackedBody struct {
	io.Reader
	closed bool
}

func (b *trackedBody) Close() error {
	b.closed = true
	return nil
}

func TestATransportClosesTheBodyWhateverHappens(t *testing.T) {
	tr := eventstest.NewTransport()
	for name, prepare := range map[string]func(){
		"taken": func() {},
		"reset": func() { tr.BehaveNext(eventstest.Reset()) },
		"down":  tr.Down,
	} {
		prepare()
		body := &trackedBody{Reader: strings.NewReader(`{}`)}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://any.example:1/", body)
		if err != nil {
			t.Fatal(err)
		}
		if resp, err := tr.RoundTrip(req); err == nil {
			resp.Body.Close()
		}
		if !body.closed {
			t.Errorf("%s: the body was left open", name)
		}
		if err := tr.Up(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAnOutageOfAnHourTakesNoTimeInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := eventstest.NewTransport()
		tr.Down()
		go func() {
			time.Sleep(time.Hour)
			_ = tr.Up()
		}()
		start := time.Now()
		go func() {
			for {
				if _, err := tryPost(t.Context(), tr, `{}`); err == nil {
					return
				}
				time.Sleep(time.Minute)
			}
		}()
		if _, err := tr.Wait(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took < time.Hour || took > time.Hour+time.Minute {
			t.Errorf("delivered after %v", took)
		}
	})
}
