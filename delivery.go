package events

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/hashicorp/go-retryablehttp"
)

// cancelGrace is how long the end of a shutdown waits for posts that it has
// cancelled. Only a transport that ignores its context takes longer.
const cancelGrace = time.Second

// delivery posts the events of one recorder. Its workers are the only
// goroutines that the package starts: the queue says when, and none is left when
// no event can be attempted. Each makes one attempt at a time; waits are the
// queue's.
type delivery struct {
	*options
	controller string // as in the payload
	instance   string
	endpoint   *url.URL
	client     *retryablehttp.Client
	// plainTransport says that the client's transport is net/http's own.
	plainTransport bool
	queue          *queue
	journal        *persistence // nil: none
	counts         *counts
	log            logr.Logger
	redact         redactor

	// ctx is the context of every post and ends with the shutdown. calm is that of
	// the posts that begin before the drain, and ends soon after it has begun.
	ctx, calm       context.Context
	cancel, endCalm context.CancelFunc
	draining        atomic.Bool
	beginDrain      sync.Once
	pointless       chan struct{} // closed when a drain with a journal finds the endpoint down
	endDrain        sync.Once

	finishing atomic.Bool
	finished  chan struct{} // closed when the shutdown is over
	lost      error         // the shutdown's result, once finished
}

func newDelivery(o *options, endpoint *url.URL, controller string, log logr.Logger) (*delivery, error) {
	metrics, err := registerCollector(o.registerer)
	if err != nil {
		return nil, err
	}
	d := &delivery{
		options:    o,
		controller: controller,
		instance:   hostname(),
		endpoint:   endpoint,
		counts:     metrics.of(controllerLabel(controller)),
		log:        log,
		redact:     newRedactor(endpoint),
		finished:   make(chan struct{}),
		pointless:  make(chan struct{}),
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.calm, d.endCalm = context.WithCancel(d.ctx)
	d.queue = newQueue(o, d.counts, rand.Uint64(), func() {
		if d.queue.timerDue() {
			d.startWorker()
		}
	})
	d.client = oneAttempt(newClient(o))
	_, d.plainTransport = d.client.HTTPClient.Transport.(*http.Transport)
	if o.journalDir == "" {
		return d, nil
	}
	var left []*item
	if d.journal, left, err = openPersistence(d); err != nil {
		return nil, err
	}
	if len(left) > 0 {
		log.Info("Events of an earlier process are delivered", "recovered", len(left))
	}
	lost, start := d.queue.restore(left)
	d.queued(lost, start)
	return d, nil
}

// hostname is looked up once for all recorders; it is empty if that fails.
var hostname = sync.OnceValue(func() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
})

// enqueue puts an event into the queue and sees to it that it gets a worker.
func (d *delivery) enqueue(it *item) {
	lost, start := d.queue.push(it)
	d.queued(lost, start)
}

func (d *delivery) queued(lost loss, start bool) {
	if start { // first: a logger may be slow, or panic
		d.startWorker()
	}
	if lost.events > 0 {
		d.logLoss(lost.outcome, lost.events, lost.cause, lost.one.logKeys()...)
	}
}

func (d *delivery) startWorker() { go d.work() }

// work makes attempts until none can be made now.
func (d *delivery) work() {
	p := d.newPoster()
	defer func() { p.release() }()
	for {
		it, another := d.queue.take()
		if it == nil {
			return
		}
		if another {
			d.startWorker()
		}
		if d.queue.tooOld(it, time.Now()) {
			d.settle(it, expired, result{})
			continue
		}
		d.conclude(it, p.post(it))
		if !p.reusable() {
			p.release()
			p = d.newPoster()
		}
	}
}

// conclude settles an event after an attempt, or gives it back.
func (d *delivery) conclude(it *item, r result) {
	it.unanswered = it.unanswered || r.unanswered
	if r.cut {
		d.queue.retry(it, 0, false) // the drain tries again, or the shutdown says what becomes of it
		return
	}
	v := d.queue.judge(it, r.ended)
	if v.gone {
		return
	}
	d.logOutage(v, r)
	if v.changed {
		d.nothingToLose()
	}
	switch {
	case r.status >= 200 && r.status < 300:
		d.settle(it, delivered, r)
	case r.status == http.StatusTooManyRequests && it.unanswered:
		d.settle(it, unconfirmed, r)
	case r.status == http.StatusTooManyRequests:
		d.settle(it, duplicate, r)
	case r.served:
		d.settle(it, rejected, r)
	case v.giveUp:
		d.settle(it, exhausted, r)
	default:
		d.queue.retry(it, r.wait, r.askedToWait)
	}
}

// nothingToLose ends a drain whose endpoint is down, if what is pending is in a
// journal: waiting would only keep the lease.
func (d *delivery) nothingToLose() {
	if d.journal != nil && d.draining.Load() && d.queue.down() {
		d.endDrain.Do(func() { close(d.pointless) })
	}
}

// settle logs what became of an event and counts it, in this order: whoever
// waits for the event finds the line written.
func (d *delivery) settle(it *item, o outcome, r result) {
	switch o {
	case delivered:
	case duplicate:
		d.log.V(1).Info("Notification endpoint has this event already", it.logKeys()...)
	default:
		keys := it.logKeys()
		if it.attempts > 0 {
			keys = append(keys, "attempts", it.attempts)
		}
		if r.status != 0 {
			keys = append(keys, "status", r.status)
		}
		if r.body != "" {
			keys = append(keys, "body", r.body)
		}
		d.logLoss(o, 1, d.redact.error(r.cause()), append(keys, "endpoint", d.shownEndpoint())...)
	}
	if d.queue.settle(it, o) {
		d.logOver(false)
	}
}

func (d *delivery) logLoss(o outcome, events int, cause error, keysAndValues ...any) {
	d.counts.losses.lost(d.log, !d.finishing.Load(), o, events, cause, keysAndValues...)
}

// logOutage says that an outage has begun or is over. Recorders of one controller
// say each only once.
func (d *delivery) logOutage(v verdict, r result) {
	switch {
	case v.outage:
		if d.counts.outageBegins(v.began) {
			d.log.Error(d.redact.error(r.cause()), "Notification endpoint fails, events are kept",
				"endpoint", d.shownEndpoint(), "since", v.began.UTC().Format(time.RFC3339), "pending", d.queue.length())
		}
	case v.over:
		d.logOver(true)
	}
}

// logOver says that an announced outage is over: the endpoint serves again, or
// no event is left to ask it about.
func (d *delivery) logOver(serves bool) {
	since, last := d.counts.outageEnds()
	if !last {
		return
	}
	outage := time.Since(since).Round(time.Millisecond).String()
	if serves {
		d.log.Info("Notification endpoint works again",
			"endpoint", d.shownEndpoint(), "outage", outage, "kept", d.queue.length())
	} else {
		d.log.Info("Notification endpoint fails, and no event waits for it any more",
			"endpoint", d.shownEndpoint(), "outage", outage)
	}
}

// shownEndpoint is as much of the endpoint's URL as may be logged.
func (d *delivery) shownEndpoint() string { return d.endpoint.Scheme + "://" + d.endpoint.Host }

// flush waits until every event recorded so far is settled.
func (d *delivery) flush(ctx context.Context) error {
	if err := d.awaitFlushed(ctx, nil); err != nil {
		return fmt.Errorf("events: Flush: %d event(s) pending: %w", d.queue.length(), err)
	}
	return nil
}

// errPointless is why a drain with a journal ends early.
var errPointless = errors.New("the endpoint is down")

func (d *delivery) awaitFlushed(ctx context.Context, pointless <-chan struct{}) error {
	done, forget := d.queue.flushed()
	select {
	case <-done: // even if ctx is done too
		return nil
	default:
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		forget()
		return ctx.Err()
	case <-pointless:
		forget()
		return errPointless
	}
}

// shutdown takes no more events and waits until the queue is empty, or until
// the context of any caller is done. Every caller gets the same result.
func (d *delivery) shutdown(ctx context.Context) error {
	d.beginDrain.Do(func() {
		d.draining.Store(true)
		time.AfterFunc(drainAttempt, d.endCalm)
	})
	// Every caller, not only the first: its own context may end before the first
	// has come this far.
	if d.queue.drain() {
		d.startWorker()
	}
	d.nothingToLose()
	cause := d.awaitFlushed(ctx, d.pointless)
	if cause == errPointless && !inTime(ctx, d.journal.saveAll) { // so there is something to lose
		cause = d.awaitFlushed(ctx, nil)
	}
	if !d.finishing.CompareAndSwap(false, true) {
		<-d.finished
		return d.lost
	}

	quit := d.queue.stop()
	d.cancel()
	grace := time.NewTimer(cancelGrace)
	defer grace.Stop()
	select {
	case <-quit:
	case <-grace.C:
	}
	if shared := sharedTransport(); d.client.HTTPClient.Transport == http.RoundTripper(shared) {
		// So that no goroutine of a connection is left. Other recorders may
		// have to connect again.
		shared.CloseIdleConnections()
	}
	d.abandon(cause)
	return d.lost
}

// abandon settles what is left when the drain ends. It logs when nobody waits for it
// any more but its caller, so that a logger may call Shutdown.
func (d *delivery) abandon(cause error) {
	o := shutdown
	if d.journal != nil && inTime(context.Background(), d.journal.close) {
		o = saved
	}
	left, over := d.queue.abandon(o)
	if left.events > 0 {
		where := ""
		if o == saved {
			where = ", saved in the journal"
		}
		d.lost = fmt.Errorf("events: Shutdown: %d event(s) not delivered%s: %w", left.events, where, cause)
	}
	close(d.finished)

	switch {
	case left.events == 0:
	case o == saved:
		d.log.Info("Events are saved in the journal", "events", left.events, "cause", cause.Error())
	default:
		d.logLoss(o, left.events, fmt.Errorf("the drain ended: %w", cause), left.one.logKeys()...)
	}
	if over {
		d.logOver(false)
	}
	d.counts.losses.flush()
}

// inTime reports whether the function returns true before ctx is done, and the disk
// takes no longer than cancelGrace.
func inTime(ctx context.Context, f func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, cancelGrace)
	defer cancel()
	result := make(chan bool, 1)
	time.AfterFunc(0, func() { result <- f() })
	select {
	case ok := <-result:
		return ok
	case <-ctx.Done():
		return false
	}
}
