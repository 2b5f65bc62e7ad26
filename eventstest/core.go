package eventstest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/eventrecorder/events"
)

// A Request is one request that reached the endpoint, whatever its method and
// path.
type Request struct {
	// Event is the event in the body. It is zero if there was none to decode.
	Event events.Event

	// Body is what was read of the body: all of it, up to 3 MiB and one byte.
	Body []byte

	// Header is the header of the request. Its Idempotency-Key identifies the
	// event: the recorder sends the same one with every attempt of an event, and
	// another one with every other event. So it tells a retry from a new event
	// with the same text.
	Header http.Header

	// Method and Path are those of the request line.
	Method, Path string

	// Time is when the request had arrived with its body.
	Time time.Time

	// Status is the status of the answer, even if the client was gone by then.
	// It is 0 while there is no answer yet, and stays 0 if there never was one.
	Status int
}

// core is what Endpoint and Transport share: everything but the way in which a
// request comes and its answer goes.
type core struct {
	// mu guards the fields below. It is held to move values only: never over
	// I/O, a Behavior, a match function or a wait.
	mu       sync.Mutex
	state    state
	window   window
	standing Behavior
	next     []Behavior

	requests []*exchange    // append-only, in order of arrival
	ended    int            // how many of the requests have ended
	events   []events.Event // append-only, in the order they were taken

	// changed is closed by the next change that a waiter may be waiting for.
	// It is nil while nobody waits. The waiter makes it, so that it belongs to
	// the waiter's synctest bubble.
	changed chan struct{}
}

type state int

const (
	serving state = iota
	down
	closed
)

// errDown is why a request ends that arrives while the endpoint goes down, or
// was in progress then.
var errDown = errors.New("eventstest: endpoint is down")

// exchange is a request in progress, or one that has ended.
type exchange struct {
	Request      // only Status changes after arrival
	refusal int  // status if there is no event in the body, otherwise 0
	taken   bool // the event is in events
	lost    bool // work has given the event up: no answer makes it taken
	ended   bool
	cancel  context.CancelCauseFunc
}

// Behave answers every request from now on with b. Nil goes back to the normal
// behaviour. What [Endpoint.BehaveNext] was given comes first.
func (c *core) Behave(b Behavior) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.standing = b
}

// BehaveNext answers the next requests with bs, one request each, in the order
// of arrival, before the standing behaviour applies again. A nil is the normal
// behaviour for one request. A second call adds to what is left of the first.
func (c *core) BehaveNext(bs ...Behavior) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next = append(c.next, bs...)
}

// Forget makes the endpoint forget which events have arrived, as a
// notification-controller does that is restarted: the next of each is no
// duplicate. Requests and Events keep what they have.
func (c *core) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.window.keys = nil
}

// Requests returns every request that has arrived, in the order of arrival,
// including those without an answer. What they point to is shared and must not
// be changed.
func (c *core) Requests() []Request {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.requestsLocked(func(*exchange) bool { return true })
}

// Events returns every event that was taken, in the order they were taken, which
// is that of arrival unless a Behavior such as [Delay] changed it. What they
// point to is shared and must not be changed.
func (c *core) Events() []events.Event {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.events)
}

// Wait waits until n events were taken since the start, and returns what Events
// returns. That may be more than n. It returns an error, with what there is,
// when ctx is done or the endpoint is closed before that; the latter is an
// [http.ErrServerClosed].
//
// A duplicate is not taken: if equal events shall count, make the endpoint with
// WithWindow(0), or use WaitRequests. The recorder counts an event after the
// endpoint has taken it, so call its Flush before looking at its metrics or logs.
func (c *core) Wait(ctx context.Context, n int) ([]events.Event, error) {
	err := c.waitUntil(ctx, func() bool { return len(c.events) >= n })
	taken := c.Events()
	if err != nil {
		err = fmt.Errorf("eventstest: waited for %d events, %d taken of %d requests: %w",
			n, len(taken), len(c.Requests()), err)
	}
	return taken, err
}

// WaitRequests waits until n requests have ended since the start, with an
// answer or without one, and returns those that have, in the order of arrival.
// That may be more than n. Its errors are those of Wait.
func (c *core) WaitRequests(ctx context.Context, n int) ([]Request, error) {
	err := c.waitUntil(ctx, func() bool { return c.ended >= n })
	c.mu.Lock()
	defer c.mu.Unlock()
	ended := c.requestsLocked(func(x *exchange) bool { return x.ended })
	if err != nil {
		err = fmt.Errorf("eventstest: waited for %d requests, %d ended of %d: %w",
			n, len(ended), len(c.requests), err)
	}
	return ended, err
}

// WaitFor waits for an event that matches, among those already taken and those
// to come, and returns the first. Its errors are those of Wait. It calls match
// once for each event, one after the other.
func (c *core) WaitFor(ctx context.Context, match func(events.Event) bool) (events.Event, error) {
	for seen := 0; ; {
		var fresh []events.Event
		err := c.waitUntil(ctx, func() bool {
			fresh = c.events[seen:]
			return len(fresh) > 0
		})
		if err != nil {
			return events.Event{}, fmt.Errorf("eventstest: none of %d events taken is the one waited for: %w", seen, err)
		}
		for _, event := range fresh {
			if match(event) {
				return event, nil
			}
		}
		seen += len(fresh)
	}
}

// waitUntil waits until done, which is called with the lock held.
func (c *core) waitUntil(ctx context.Context, done func() bool) error {
	for {
		c.mu.Lock()
		if done() {
			c.mu.Unlock()
			return nil
		}
		if c.state == closed {
			c.mu.Unlock()
			return http.ErrServerClosed
		}
		if c.changed == nil {
			c.changed = make(chan struct{})
		}
		changed := c.changed
		c.mu.Unlock()

		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c *core) changedLocked() {
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

func (c *core) requestsLocked(which func(*exchange) bool) []Request {
	requests := make([]Request, 0, len(c.requests))
	for _, x := range c.requests {
		if which(x) {
			requests = append(requests, x.Request)
		}
	}
	return requests
}

// enter changes the state, unless the endpoint is closed: that is final. Every
// state but serving ends the requests in progress.
func (c *core) enter(s state) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == closed {
		return http.ErrServerClosed
	}
	c.state = s
	if s != serving {
		for _, x := range c.requests {
			if !x.ended {
				x.cancel(errDown)
			}
		}
	}
	c.changedLocked()
	return nil
}

// handle is one request from arrival to answer. It returns errDown, errReset or
// http.ErrAbortHandler if nothing that was written to w shall be sent.
func (c *core) handle(w http.ResponseWriter, r *http.Request) (err error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)

	x := &exchange{cancel: cancel}
	x.Method, x.Path, x.Header = r.Method, r.URL.Path, r.Header.Clone()
	x.Body, x.Event, x.refusal = readEvent(r)
	behave, up := c.arrive(x)
	if !up {
		return errDown
	}

	answer := &answerWriter{ResponseWriter: w}
	defer func() {
		p := recover()
		if p != nil && !answer.flushed {
			answer.status = 0
		}
		c.end(x, answer.status)
		switch p {
		case nil:
		case errReset, http.ErrAbortHandler:
			err = p.(error)
		default:
			panic(p)
		}
	}()

	r = r.WithContext(ctx)
	r.Body = io.NopCloser(bytes.NewReader(x.Body))
	normal := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { c.answer(w, r, x) })
	if behave == nil {
		behave = func(w http.ResponseWriter, r *http.Request, normal http.Handler) { normal.ServeHTTP(w, r) }
	}
	behave(answer, r, normal)
	if answer.status == 0 {
		answer.WriteHeader(http.StatusOK)
	}
	if context.Cause(ctx) == errDown {
		return http.ErrAbortHandler
	}
	return nil
}

// arrive records the request and returns how to answer it. It does neither
// unless the endpoint is up.
func (c *core) arrive(x *exchange) (behave Behavior, up bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != serving {
		return nil, false
	}
	x.Time = time.Now()
	c.requests = append(c.requests, x)
	behave = c.standing
	if len(c.next) > 0 {
		behave, c.next = c.next[0], c.next[1:]
	}
	return behave, true
}

// answer is the normal behaviour. The order is that of notification-controller:
// the event is remembered before there is any work on it.
func (c *core) answer(w http.ResponseWriter, r *http.Request, x *exchange) {
	if x.refusal != 0 {
		w.WriteHeader(x.refusal)
		return
	}
	first, reset := c.remember(x)
	if first && !c.work(r.Context(), x) {
		panic(http.ErrAbortHandler)
	}
	writeVerdict(w, first, reset)
}

// remember reports whether the event is the first of its duplicates, and
// remembers it if so. The reset time is zero if there is no deduplication.
func (c *core) remember(x *exchange) (first bool, reset time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.window.interval == 0 {
		return true, time.Time{}
	}
	return c.window.admit(duplicateKey(&x.Event), time.Now())
}

// work is the controller's handler: it takes the event, after the time that
// Delay asked for. It does not if ctx is done by then, and not if that is more
// time than the controller has. It reports whether somebody waits for an answer.
func (c *core) work(ctx context.Context, x *exchange) (wanted bool) {
	d, _ := ctx.Value(delayKey{}).(time.Duration)
	if d > 0 {
		timer := time.NewTimer(min(d, handlerTimeout))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	// Down and Close cancel ctx under the lock, so nothing is taken after them.
	// A timer that has fired proves nothing: ctx may be done as well.
	wanted = ctx.Err() == nil
	if wanted && d <= handlerTimeout {
		c.takenLocked(x)
	} else {
		x.lost = true
	}
	return wanted
}

func (c *core) takenLocked(x *exchange) {
	x.taken = true
	c.events = append(c.events, x.Event)
	c.changedLocked()
}

// end records the status before the answer goes out, so that a client that has
// it finds it in Requests too.
func (c *core) end(x *exchange, status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	x.Status = status
	x.ended = true
	c.ended++
	if !x.taken && !x.lost && x.refusal == 0 && status/100 == 2 {
		c.takenLocked(x)
	}
	c.changedLocked()
}

// answerWriter notes the status of an answer.
type answerWriter struct {
	http.ResponseWriter
	status  int
	flushed bool
}

func (w *answerWriter) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *answerWriter) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	return w.ResponseWriter.Write(b)
}

func (w *answerWriter) Flush() {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if f, ok := w.ResponseWriter.(http.Flusher); ok {
		w.flushed = true
		f.Flush()
	}
}
