package events_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	events "github.com/eventrecorder/events"
)

// net/http repeats a post (Idempotency-Key) when a kept-alive connection is closed before
// the answer. The 429 of the repeat is then that of a duplicate of an attempt without an answer.
func TestReplayByNetHTTPThenDuplicateIsUnconfirmed(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]int{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		key := r.Header.Get("Idempotency-Key")
		seen[key]++
		n := seen[key]
		mu.Unlock()
		switch {
		case bytes.Contains(body, []byte("first")):
			w.WriteHeader(202)
		case n == 1: // noted the event, and dies
			c, _, _ := w.(http.Hijacker).Hijack()
			c.Close()
		default:
			w.WriteHeader(429)
		}
	}))
	defer srv.Close()
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	h := newHarness(t, srv.URL, events.WithHTTPClient(&http.Client{Transport: tr}))
	h.say("a", "first")
	h.settled()
	h.say("a", "second")
	h.settled()
	t.Log("posts", seen, "attempts", h.value("event_recorder_attempts_total"))
	h.wantOutcomes(map[string]int{"delivered": 1, "unconfirmed": 1})
	h.closed()
}

// A round tripper that mirrors each post: correct code, the copy has its own body from GetBody.
type mirror struct {
	base   http.RoundTripper
	wg     *sync.WaitGroup
	mirror string
	delay  time.Duration
}

func (m mirror) RoundTrip(req *http.Request) (*http.Response, error) {
	dup := req.Clone(context.WithoutCancel(req.Context()))
	dup.Body, _ = req.GetBody()
	dup.URL.Host = m.mirror
	dup.Host = m.mirror
	m.wg.Add(1)
	go func() {
		defer m.wg.Done()
		time.Sleep(m.delay)
		resp, err := m.base.RoundTrip(dup)
		if err == nil {
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
	}()
	return m.base.RoundTrip(req)
}

func TestMirrorSeesTheBytesOfItsOwnEvent(t *testing.T) {
	var mu sync.Mutex
	got := map[string][]string{}
	handler := func(name string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			mu.Lock()
			got[r.Header.Get("Idempotency-Key")] = append(got[r.Header.Get("Idempotency-Key")], string(b))
			mu.Unlock()
			w.WriteHeader(202)
		})
	}
	srv, shadow := httptest.NewServer(handler("main")), httptest.NewServer(handler("shadow"))
	defer srv.Close()
	defer shadow.Close()
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	var wg sync.WaitGroup
	m := mirror{tr, &wg, strings.TrimPrefix(shadow.URL, "http://"), 3 * time.Millisecond}
	h := newHarness(t, srv.URL, events.WithHTTPClient(&http.Client{Transport: m}), events.WithConcurrency(1))
	for i := range 50 {
		h.say(fmt.Sprint("o", i), fmt.Sprintf("message %02d", i))
	}
	h.settled()
	wg.Wait()
	mixed := 0
	for key, bodies := range got {
		if len(bodies) == 2 && bodies[0] != bodies[1] {
			mixed++
			if mixed == 1 {
				t.Errorf("key %s arrived with two bodies:\n%s\n%s", key, bodies[0], bodies[1])
			}
		}
	}
	if mixed > 0 {
		t.Errorf("%d of %d keys have mixed bodies", mixed, len(got))
	}
	h.closed()
}

// hedge sends a second post if the first has no answer within a delay, and takes the first
// answer; the loser is cancelled when the winner's body is closed.
type hedge struct {
	base  http.RoundTripper
	wg    *sync.WaitGroup
	after time.Duration
}

func (m hedge) RoundTrip(req *http.Request) (*http.Response, error) {
	type res struct {
		r *http.Response
		e error
	}
	ch := make(chan res, 2)
	send := func(r *http.Request) {
		defer m.wg.Done()
		resp, err := m.base.RoundTrip(r)
		ch <- res{resp, err}
	}
	second := req.Clone(req.Context())
	second.Body, _ = req.GetBody()
	m.wg.Add(1)
	go send(req)
	select {
	case x := <-ch:
		return x.r, x.e
	case <-time.After(m.after):
	}
	m.wg.Add(1)
	go send(second)
	x := <-ch
	m.wg.Add(1)
	go func() {
		defer m.wg.Done()
		if y := <-ch; y.e == nil {
			io.Copy(io.Discard, y.r.Body)
			y.r.Body.Close()
		}
	}()
	return x.r, x.e
}

func TestHedgedPostsKeepTheirBytes(t *testing.T) {
	var mu sync.Mutex
	got := map[string]map[string]int{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		mu.Lock()
		k := r.Header.Get("Idempotency-Key")
		if err == nil {
			if got[k] == nil {
				got[k] = map[string]int{}
			}
			got[k][string(b)]++
		}
		mu.Unlock()
		time.Sleep(2 * time.Millisecond)
		w.WriteHeader(202)
	}))
	defer srv.Close()
	tr := &http.Transport{DisableKeepAlives: true}
	defer tr.CloseIdleConnections()
	var wg sync.WaitGroup
	h := newHarness(t, srv.URL, events.WithHTTPClient(&http.Client{Transport: hedge{tr, &wg, 2 * time.Millisecond}}), events.WithConcurrency(8))
	h.log.quiet = true
	for i := range 3000 {
		h.say(fmt.Sprint("o", i), fmt.Sprintf("message %04d", i))
	}
	h.settled()
	wg.Wait()
	mu.Lock() // a handler whose client has gone may still be at it
	defer mu.Unlock()
	mixed := 0
	for key, bodies := range got {
		if len(bodies) > 1 {
			mixed++
			if mixed == 1 {
				t.Errorf("key %s: %v", key, bodies)
			}
		}
	}
	t.Log(h.outcomes(), "keys", len(got), "mixed", mixed)
	if mixed > 0 {
		t.Errorf("%d of %d keys have mixed bodies", mixed, len(got))
	}
	h.closed()
}

// A transport that replaces the header of the request (it should not) must not make all later
// events travel with the first one's key.
type replacer struct{ base http.RoundTripper }

func (m replacer) RoundTrip(req *http.Request) (*http.Response, error) {
	req.Header = req.Header.Clone()
	req.Header.Set("Authorization", "Bearer x")
	return m.base.RoundTrip(req)
}

func TestATransportThatReplacesTheHeader(t *testing.T) {
	var mu sync.Mutex
	keys := map[string]int{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		mu.Lock()
		keys[r.Header.Get("Idempotency-Key")]++
		mu.Unlock()
		w.WriteHeader(202)
	}))
	defer srv.Close()
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	h := newHarness(t, srv.URL, events.WithHTTPClient(&http.Client{Transport: replacer{tr}}), events.WithConcurrency(1))
	for i := range 20 {
		h.say(fmt.Sprint("o", i), fmt.Sprintf("message %02d", i))
	}
	h.settled()
	if len(keys) != 20 {
		t.Errorf("%d keys for 20 events: %v", len(keys), keys)
	}
	h.closed()
}

// An answer after the end of a shutdown, other than 500.
func TestALateRefusalIsNotLoggedASecondTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stubborn := roundTripper(func(r *http.Request) (*http.Response, error) {
			time.Sleep(20 * time.Second)
			return &http.Response{StatusCode: 400, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
		})
		h := newHarness(t, "http://endpoint/", events.WithHTTPClient(&http.Client{Transport: stubborn}))
		h.say("a", "m")
		synctest.Wait()
		h.shutdownNow()
		lines := len(h.log.lines)
		time.Sleep(time.Hour)
		h.wantOutcomes(map[string]int{"shutdown": 1})
		if len(h.log.lines) != lines {
			t.Errorf("lines after the end: %v", h.log.lines[lines:])
		}
	})
}

// A relative Location with a secret of the endpoint's URL in another order.
func TestSecretInARelativeLocation(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		w.Header().Set("Location", "/login%zz?token="+q.Get("token"))
		w.WriteHeader(307)
	}))
	defer srv.Close()
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	h := newHarness(t, srv.URL+"/hook?v=1&token=s3cr3t", events.WithHTTPClient(&http.Client{Transport: tr}))
	h.say("a", "m")
	h.settled()
	for _, l := range h.log.lines {
		if strings.Contains(l.String(), "s3cr3t") {
			t.Error(l)
		}
	}
	h.closed()
}

// A slow endpoint that serves everybody, and a drain.
func TestADrainOfASlowEndpointIsNoOutage(t *testing.T) {
	for _, journal := range []bool{false, true} {
		t.Run(fmt.Sprint("journal ", journal), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var served atomic.Int32
				slow := roundTripper(func(r *http.Request) (*http.Response, error) {
					select {
					case <-time.After(13 * time.Second):
						served.Add(1)
						return &http.Response{StatusCode: 202, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
					case <-r.Context().Done():
						return nil, context.Cause(r.Context())
					}
				})
				opts := []events.Option{events.WithHTTPClient(&http.Client{Transport: slow})}
				if journal {
					opts = append(opts, events.WithJournal(t.TempDir()))
				}
				h := newHarness(t, "http://endpoint/", opts...)
				h.log.quiet = true
				for i := range 5 {
					h.say(fmt.Sprint("o", i), "m")
				}
				time.Sleep(8 * time.Second)
				begin := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
				defer cancel()
				err := h.Shutdown(ctx)
				t.Log(journal, time.Since(begin), err, h.outcomes())
				for _, l := range h.log.with(msgOutage) {
					t.Error("false outage: ", l)
				}
			})
		})
	}
}
