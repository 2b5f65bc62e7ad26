package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-retryablehttp"
)

// What a post of this library has that a bare one has not, added to the plain loop
// one by one, and all at once: so it shows where the processor time goes. Each
// variant takes turns with the plain loop, and what counts is the median of the
// differences of neighbours.

// extras is what is added to a bare post.
type extras struct {
	headers  bool // Idempotency-Key and User-Agent
	canceled bool // a context that can be cancelled
	traced   bool // two callbacks, which tell when the memory of a post is free again
	deadline bool // a timer, which is set and stopped
	retrying bool // go-retryablehttp's client
}

var steps = []struct {
	what string
	extras
}{
	{"headers Idempotency-Key and User-Agent", extras{headers: true}},
	{"a context that can be cancelled", extras{canceled: true}},
	{"callbacks that tell when the buffer is free", extras{traced: true}},
	{"a timer for the deadline", extras{deadline: true}},
	{"the client of go-retryablehttp", extras{retrying: true}},
	{"all of these", extras{true, true, true, true, true}},
}

// measureSteps fills the list of what makes a post dearer than a bare one.
func measureSteps(r *report, s scale) error {
	d := delivery{parallel: 1, events: s.deliveryEvents}
	var bodies [][]byte
	if _, err := d.ours(&bodies); err != nil {
		return err
	}
	for _, step := range steps {
		var bare, more, rates []float64
		for pair := range s.deliveryPairs {
			variants := []extras{{}, step.extras}
			costs := make([]float64, 2)
			speeds := make([]float64, 2)
			for i := range variants {
				i = (i + pair) % 2
				run, err := d.plain(bodies, variants[i].poster)
				if err != nil {
					return err
				}
				costs[i], speeds[i] = run.cost, run.rate
			}
			bare = append(bare, costs[0])
			more = append(more, costs[1]-costs[0])
			rates = append(rates, speeds[1]/speeds[0])
		}
		micro := func(x float64) string { return fmt.Sprintf("%+.1f", x*1e6) }
		r.steps = append(r.steps, fmt.Sprintf("%s: %s µs of processor time on %.1f; rate %.2f",
			step.what, middle(more, micro), median(bare)*1e6, median(rates)))
	}
	return nil
}

// poster returns a function that posts, for one worker, which calls release in the
// end.
func (e extras) poster(client *http.Client, url string) (post func(body []byte) error, release func()) {
	ctx, release := context.Background(), func() {}
	if e.canceled {
		ctx, release = context.WithCancel(ctx)
	}
	var conns, written, posts atomic.Int64
	if e.traced {
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
			GotConn:      func(httptrace.GotConnInfo) { conns.Add(1) },
			WroteRequest: func(httptrace.WroteRequestInfo) { written.Add(1) },
		})
	}
	var timer *time.Timer
	if e.deadline {
		timer = time.AfterFunc(time.Hour, release)
	}
	retrying := &retryablehttp.Client{
		HTTPClient:   client,
		CheckRetry:   func(context.Context, *http.Response, error) (bool, error) { return false, nil },
		ErrorHandler: retryablehttp.PassthroughErrorHandler,
	}
	post = func(body []byte) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		if e.headers {
			req.Header.Set("User-Agent", "eventrecorder-events")
			req.Header.Set("Idempotency-Key", "8f3a5b7c9d1e2f40-"+strconv.FormatInt(posts.Add(1), 10))
		}
		if e.deadline {
			timer.Reset(time.Hour)
		}
		var resp *http.Response
		if e.retrying {
			resp, err = retrying.Do(&retryablehttp.Request{Request: req})
		} else {
			resp, err = client.Do(req)
		}
		if e.deadline {
			timer.Stop()
		}
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return err
		}
		if resp.StatusCode != http.StatusAccepted {
			return fmt.Errorf("status %d", resp.StatusCode)
		}
		return nil
	}
	return post, release
}
