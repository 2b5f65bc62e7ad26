package events_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
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

// Early answers, 1xx, 307 and both protocols: bytes must not mix.
func TestEarlyAnswersDoNotMix(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		var mu sync.Mutex
		bad := 0
		bodies := map[string][32]byte{}
		srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			rc := http.NewResponseController(w)
			_ = rc.EnableFullDuplex()
			if len(r.Header.Get("Idempotency-Key"))%2 == 0 && r.URL.Path == "/" {
				w.WriteHeader(103)
			}
			if r.URL.Path == "/" && r.ContentLength%3 == 0 {
				http.Redirect(w, r, "/x", http.StatusTemporaryRedirect)
				_ = rc.Flush()
				return
			}
			w.WriteHeader(202)
			_ = rc.Flush()
			time.Sleep(time.Millisecond)
			b, err := io.ReadAll(r.Body)
			if err != nil {
				return
			}
			var e events.Event
			if json.Unmarshal(b, &e) != nil || !strings.HasPrefix(e.Message, e.InvolvedObject.Name+" ") || strings.Trim(e.Message[len(e.InvolvedObject.Name)+1:], string(e.Message[len(e.Message)-1])) != "" {
				mu.Lock()
				bad++
				mu.Unlock()
			}
			mu.Lock()
			k := r.Header.Get("Idempotency-Key")
			if s, ok := bodies[k]; ok && s != sha256.Sum256(b) {
				bad++
			}
			bodies[k] = sha256.Sum256(b)
			mu.Unlock()
		}))
		srv.EnableHTTP2 = h2
		if h2 {
			srv.StartTLS()
		} else {
			srv.Start()
		}
		c := srv.Client()
		h := newHarness(t, srv.URL+"/", events.WithHTTPClient(c))
		h.log.quiet = true
		for i := range 1500 {
			name := fmt.Sprint("o", i)
			h.say(name, name+" "+strings.Repeat(string(rune('a'+i%26)), 1+(i*7919)%38000))
		}
		h.settled()
		h.closed()
		srv.Close()
		if bad > 0 {
			t.Errorf("h2 %v: %d bad bodies", h2, bad)
		}
		t.Log("h2", h2, h.outcomes(), len(bodies), "arrived whole")
	}
}

// A logger that panics in a recording call, which controller-runtime recovers from, must not
// take a worker with it.
func TestALoggerThatPanicsInACallCostsNoWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var up atomic.Bool
		tr := roundTripper(func(r *http.Request) (*http.Response, error) {
			if !up.Load() {
				return nil, &net.OpError{Op: "dial", Err: fmt.Errorf("refused")}
			}
			return &http.Response{StatusCode: 202, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
		})
		h := newHarness(t, "http://endpoint/", events.WithHTTPClient(&http.Client{Transport: tr}),
			events.WithConcurrency(1), events.WithQueueBytes(2048))
		h.say("a", strings.Repeat("x", 400))
		synctest.Wait() // a waits for its next attempt: no worker
		h.log.hook = func(m string) {
			if m == msgLost {
				panic("logger")
			}
		}
		func() {
			defer func() { _ = recover() }()
			h.say("b", strings.Repeat("x", 700)) // pushes out a
		}()
		h.log.hook = nil
		up.Store(true)
		time.Sleep(time.Minute)
		for i := range 3 {
			h.say(fmt.Sprint("c", i), "m")
			time.Sleep(time.Minute)
		}
		got := h.outcomes()
		t.Log(got)
		if got["delivered"] == 0 {
			t.Errorf("nothing is delivered any more, an hour later: %v", got)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		t.Log(h.Shutdown(ctx))
	})
}
