package events

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/hashicorp/go-retryablehttp"
)

const (
	// maxDrainedBody is how much of an answer is read so that its connection
	// can be used again; a longer answer costs the connection.
	maxDrainedBody = 64 << 10

	// maxLoggedBody is how much of an answer a log line shows, and
	// maxReadBody how much is looked through for secrets first: one that is cut
	// in two would not be recognized.
	maxLoggedBody = 256
	maxReadBody   = 4 << 10

	// maxStrikes is how many deliveries of one event may begin right after an
	// answer to another one, and fail.
	maxStrikes = 3

	// cancelGrace is how long the end of a shutdown waits for posts that it has
	// cancelled. Only a transport that ignores its context takes longer.
	cancelGrace = time.Second
)

// delivery posts the events of one recorder. Its workers are the only
// goroutines that the package starts: one starts when an event is queued and fewer than
// the allowed number run, and ends when no lane is ready.
type delivery struct {
	*options
	controller string // as in the payload
	label      string // the same in the metrics
	instance   string
	endpoint   *url.URL
	client     *http.Client
	queue      *queue
	metrics    *collector
	counts     *counts
	log        logr.Logger
	losses     *lossLog
	redact     *redactor

	// ctx is the context of every post. It ends with the shutdown.
	ctx    context.Context
	cancel context.CancelFunc

	epoch  time.Time
	answer atomic.Int64 // when the latest attempt that was answered began, since epoch
	outage outage

	finishing atomic.Bool
	finished  chan struct{} // closed when the shutdown is over
	lost      error         // the shutdown's result, once finished
}

// outage is a time in which the endpoint gave no answer.
type outage struct {
	mu    sync.Mutex
	since time.Duration // since epoch; 0: there is no outage
}

func newDelivery(o *options, webhook string, endpoint *url.URL, controller string, log logr.Logger, losses *lossLog) (*delivery, error) {
	metrics, err := registerCollector(o.registerer)
	if err != nil {
		return nil, err
	}
	label := controllerLabel(controller)
	counts := metrics.of(label)
	d := &delivery{
		options:    o,
		controller: controller,
		label:      label,
		instance:   hostname(),
		endpoint:   endpoint,
		client:     newClient(o),
		queue:      newQueue(o.queueBytes, o.concurrency, counts),
		metrics:    metrics,
		counts:     counts,
		log:        log,
		losses:     losses,
		redact:     newRedactor(webhook, endpoint),
		epoch:      time.Now(),
		finished:   make(chan struct{}),
	}
	d.answer.Store(math.MinInt64)
	d.ctx, d.cancel = context.WithCancel(context.Background())
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
	p := d.queue.push(it)
	if p.lostEvents > 0 {
		d.losses.lost(p.lost, p.lostEvents, p.cause(), p.lostFirst.logKeys()...)
	}
	if p.startWorker {
		go d.work()
	}
}

// work posts events until no lane is ready.
func (d *delivery) work() {
	for it := d.queue.take(); it != nil; it = d.queue.take() {
		if time.Since(it.recorded) > d.maxAge {
			d.settle(it, expired, result{})
			continue
		}
		began := d.now()
		r := d.post(it)
		switch o, settled := d.judge(r); {
		case settled:
			d.settle(it, o, r)
		case d.ctx.Err() != nil:
			d.queue.putBack(it)
		default:
			d.beginOutage(began, r.cause())
			d.pause() // with the lane in hand: it must not come back at once
			d.queue.putBack(it)
		}
	}
}

// result is what came of the attempts to post one event.
type result struct {
	attempts int
	status   int    // of the last answer, 0 if the last attempt had none
	err      error  // of the last attempt that had none
	body     string // how the last answer began, unless it was a good one
	final    bool   // the retry policy wanted no other attempt
	tooOld   bool   // the event reached its maximum age between attempts

	// othersAnswered says that the endpoint is there for others and not for
	// this event. What it answered just before an outage or just after proves
	// nothing, and neither does what it answered while it was back for a
	// moment. So an event is at fault if another one was taken up and answered
	// between the last two of its attempts, right before the last, or right
	// before its delivery for the third time.
	othersAnswered bool
}

// cause is why the last attempt did not succeed.
func (r result) cause() error {
	if r.err == nil && r.attempts > 0 {
		return fmt.Errorf("HTTP status %d", r.status)
	}
	return r.err
}

// judge says what became of an event, or that it must be kept.
func (d *delivery) judge(r result) (o outcome, settled bool) {
	switch {
	case r.status >= 200 && r.status < 300:
		return delivered, true
	case r.status == http.StatusTooManyRequests:
		return duplicate, true
	case answered(r.status) && (r.status < 500 || r.status == http.StatusNotImplemented):
		return rejected, true
	case d.ctx.Err() != nil:
		return 0, false
	case r.tooOld:
		return expired, true
	case r.status == 0 && r.final:
		return rejected, true
	case answered(r.status), r.othersAnswered:
		return exhausted, true
	default:
		return 0, false
	}
}

// answered reports whether a status is the endpoint's own answer. With 502, 503
// and 504 something in front of it says that it cannot be reached.
func answered(status int) bool {
	return status != 0 && (status < http.StatusBadGateway || status > http.StatusGatewayTimeout)
}

// post makes one delivery: up to retryMax+1 attempts with waits between them.
func (d *delivery) post(it *item) (r result) {
	body, err := json.Marshal(it.event(d.controller, d.instance))
	if err != nil {
		return result{err: err, final: true}
	}
	// Like http.NewRequestWithContext, without parsing the URL each time. The
	// copy is for transports that change it.
	endpoint := *d.endpoint
	plain := http.Request{Method: http.MethodPost, URL: &endpoint, Host: endpoint.Host,
		Header: http.Header{"Content-Type": {"application/json"}}}
	req := &retryablehttp.Request{Request: plain.WithContext(d.ctx)}
	if err := req.SetBody(body); err != nil {
		return result{err: err, final: true}
	}

	// Whether another event has been answered since the last attempt of this
	// one, and not long ago. Attempts of this event end later than they begin,
	// so they never count.
	answeredOthers := func(within time.Duration) bool {
		latest := time.Duration(d.answer.Load())
		return it.failed > 0 && latest > it.failed && d.now()-latest <= within
	}
	if answeredOthers(d.timeout + d.retryWaitMin) {
		it.strikes++
	}

	var began time.Duration // of the attempt
	transport := &attempt{next: d.client.Transport}
	single := *d.client
	single.Transport = transport
	client := &retryablehttp.Client{
		HTTPClient:   &single,
		RetryMax:     d.retryMax,
		RetryWaitMin: d.retryWaitMin,
		RetryWaitMax: d.retryWaitMax,
		Backoff:      Backoff,
		ErrorHandler: retryablehttp.PassthroughErrorHandler,
		RequestLogHook: func(_ retryablehttp.Logger, _ *http.Request, retries int) {
			began = d.now()
			transport.deadline = time.Now().Add(d.timeout)
			r.othersAnswered = it.strikes >= maxStrikes || retries > 0 && answeredOthers(d.retryWaitMin)
		},
		CheckRetry: func(ctx context.Context, resp *http.Response, err error) (bool, error) {
			it.failed = d.now()
			r.attempts++
			// With an error, an answer to the last request is a redirect that
			// cannot be followed.
			r.status, r.err = transport.status, err
			if answered(r.status) {
				d.answeredAttempt(began)
			}
			if ctx.Err() == nil || r.status != 0 {
				d.metrics.attempt(d.label, r.status, it.failed-began)
			}
			retry, err := CheckRetry(ctx, resp, err)
			if r.err != nil && r.status != 0 {
				retry = false
			}
			if retry && time.Since(it.recorded) > d.maxAge {
				retry, r.tooOld = false, true
			}
			r.final = !retry
			return retry, err
		},
	}
	resp, _ := client.Do(req) // all that it says is in r
	if resp != nil {
		if r.status >= 300 && r.status != http.StatusTooManyRequests {
			start, _ := io.ReadAll(io.LimitReader(resp.Body, maxReadBody))
			r.body = cutBytes(d.redact.start(string(start), len(start) == maxReadBody), maxLoggedBody)
		}
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxDrainedBody))
		_ = resp.Body.Close()
	}
	return r
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
		if r.attempts > 0 {
			keys = append(keys, "attempts", r.attempts)
		}
		if r.status != 0 {
			keys = append(keys, "status", r.status, "body", r.body)
		}
		d.losses.lost(o, 1, d.redact.error(r.cause()), append(keys, "endpoint", d.shownEndpoint())...)
	}
	d.queue.settle(it, o)
	if d.queue.length() == 0 {
		d.endOutage(false)
	}
}

// pause is the wait between two deliveries of an event that is kept.
func (d *delivery) pause() {
	timer := time.NewTimer(Backoff(d.retryWaitMin, d.retryWaitMax, 0, nil))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-d.ctx.Done():
	}
}

// now is the time since the delivery was made, always positive.
func (d *delivery) now() time.Duration { return time.Since(d.epoch) + 1 }

// answeredAttempt notes that the endpoint has answered an attempt.
func (d *delivery) answeredAttempt(began time.Duration) {
	for {
		latest := d.answer.Load()
		if int64(began) <= latest || d.answer.CompareAndSwap(latest, int64(began)) {
			break
		}
	}
	d.endOutage(true)
}

// beginOutage notes that a delivery which began at that time got no answer.
func (d *delivery) beginOutage(began time.Duration, cause error) {
	d.outage.mu.Lock()
	begins := d.outage.since == 0 && d.answer.Load() < int64(began)
	if begins {
		d.outage.since = began
		d.counts.outage(+1)
	}
	d.outage.mu.Unlock()
	if begins {
		d.log.Error(d.redact.error(cause), "Notification endpoint cannot be reached, events are kept",
			"endpoint", d.shownEndpoint(), "pending", d.queue.length())
	}
}

// endOutage notes that the endpoint has answered, or that no event is left to
// ask it about.
func (d *delivery) endOutage(answers bool) {
	d.outage.mu.Lock()
	since := d.outage.since
	d.outage.since = 0
	if since != 0 {
		d.counts.outage(-1)
	}
	d.outage.mu.Unlock()
	if since == 0 {
		return
	}
	lasted := (d.now() - since).Round(time.Millisecond).String()
	if answers {
		d.log.Info("Notification endpoint answers again",
			"endpoint", d.shownEndpoint(), "outage", lasted, "kept", d.queue.length())
	} else {
		d.log.Info("Notification endpoint cannot be reached, and no event waits for it any more",
			"endpoint", d.shownEndpoint(), "outage", lasted)
	}
}

// shownEndpoint is as much of the endpoint's URL as may be logged.
func (d *delivery) shownEndpoint() string { return d.endpoint.Scheme + "://" + d.endpoint.Host }

// flush waits until every event recorded so far is settled.
func (d *delivery) flush(ctx context.Context) error {
	if err := d.drain(ctx); err != nil {
		return fmt.Errorf("events: Flush: %d event(s) pending: %w", d.queue.length(), err)
	}
	return nil
}

// drain waits until every event recorded so far is settled, or ctx is done.
func (d *delivery) drain(ctx context.Context) error {
	done, forget := d.queue.drained()
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
	}
}

// shutdown takes no more events and waits until the queue is empty, or until
// the context of any caller is done. Every caller gets the same result.
func (d *delivery) shutdown(ctx context.Context) error {
	d.queue.close()
	cause := d.drain(ctx)
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
	n, first := d.queue.abandon()
	if n > 0 {
		d.lost = fmt.Errorf("events: Shutdown: %d event(s) not delivered: %w", n, cause)
	}
	if shared := sharedTransport(); d.client.Transport == http.RoundTripper(shared) {
		// So that no goroutine of a connection is left. Other recorders may
		// have to connect again.
		shared.CloseIdleConnections()
	}
	close(d.finished)

	// Nobody waits any more for the lines that follow.
	if n > 0 {
		d.losses.lost(shutdown, n, fmt.Errorf("the drain ended: %w", cause), first.logKeys()...)
	}
	d.endOutage(false)
	d.losses.flush()
	return d.lost
}
