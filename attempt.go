package events

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-retryablehttp"
)

const (
	// maxLoggedBody is how much of an answer a log line shows.
	maxLoggedBody = 256

	// maxKeptBody is the largest buffer that a poster keeps for its next post.
	maxKeptBody = 64 << 10

	// drainAttempt limits an attempt in a drain, and those in flight when it begins:
	// one that hangs must not use up the drain.
	drainAttempt = 4 * time.Second

	userAgent = "eventrecorder-events"
)

// result is what came of one attempt.
type result struct {
	ended
	status      int   // 0: there was no answer
	err         error // why there was none
	body        string
	unanswered  bool // the endpoint may have the event, but did not say so
	cut         bool // ended by the drain or the shutdown, so it says nothing
	wait        time.Duration
	askedToWait bool // the wait is that of a Retry-After
}

// cause is why the attempt did not succeed.
func (r *result) cause() error {
	if r.status != 0 {
		return fmt.Errorf("HTTP status %d", r.status)
	}
	return r.err
}

// poster makes attempts, one at a time. What a post needs is made once and used
// for the next one, unless net/http may still be reading it: see reusable.
type poster struct {
	d      *delivery
	req    *retryablehttp.Request
	header http.Header
	key    []string // the values of the header that differ from post to post
	url    url.URL
	text   []byte
	reader bytes.Reader
	body   io.ReadCloser

	draining bool            // made in the drain
	parent   context.Context // of the context of its posts
	limit    time.Duration
	timer    *time.Timer
	cancel   context.CancelCauseFunc // ends the post in progress

	// Of the latest post: how often it got a connection, was written there and
	// answered. net/http repeats a post if the connection turns out to be closed.
	conns, written, answers atomic.Int32
	spent                   bool // it got no answer, or its context has ended
}

var (
	contentTypeValue = []string{"application/json"}
	userAgentValue   = []string{userAgent}
)

func (d *delivery) newPoster() *poster {
	p := &poster{d: d, header: make(http.Header, 4), key: make([]string, 1), draining: d.draining.Load()}
	p.parent, p.limit = d.calm, d.timeout
	if p.draining {
		p.parent, p.limit = d.ctx, min(d.timeout, drainAttempt)
	}
	ctx, cancel := context.WithCancelCause(httptrace.WithClientTrace(p.parent, &httptrace.ClientTrace{
		GotConn:              func(httptrace.GotConnInfo) { p.conns.Add(1) },
		WroteRequest:         func(httptrace.WroteRequestInfo) { p.written.Add(1) },
		GotFirstResponseByte: func() { p.answers.Add(1) },
	}))
	p.cancel = cancel
	// Its type tells net/http that header and body can be sent in one write.
	p.body = io.NopCloser(&p.reader)
	plain := &http.Request{Method: http.MethodPost, URL: &p.url, Host: d.endpoint.Host, Header: p.header}
	p.req = &retryablehttp.Request{Request: plain.WithContext(ctx)}
	_ = p.req.SetBody(retryablehttp.ReaderFunc(func() (io.Reader, error) { return p.body, nil })) // cannot fail
	return p
}

// reusable reports whether nothing reads the memory of the last post any more,
// and its context has not ended and is the right one. A transport around net/http's
// own may still have the request, to log or to mirror it.
func (p *poster) reusable() bool {
	return p.d.plainTransport && !p.spent && p.conns.Load() == 1 && p.written.Load() == 1 &&
		cap(p.text) <= maxKeptBody && p.draining == p.d.draining.Load()
}

// release lets go of the context.
func (p *poster) release() { p.cancel(nil) }

// post makes one attempt.
func (p *poster) post(it *item) (r result) {
	d := p.d
	p.text = it.appendJSON(p.text[:0], d.controller, d.instance)
	text := p.text
	p.reader.Reset(text)
	p.req.ContentLength = int64(len(text))
	p.req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil }
	// Anew each time: a cookie jar writes to the header, a transport might.
	p.url = *d.endpoint
	clear(p.header)
	p.header["Content-Type"], p.header["User-Agent"] = contentTypeValue, userAgentValue
	p.key[0] = it.key.String()
	p.header["Idempotency-Key"] = p.key
	// An event that has failed leaves its connection behind. Behind a Service that
	// chooses among its backends once for each connection, the next one may lead to
	// a backend that works; a connection that is kept leads to the same one for ever.
	p.req.Close = it.attempts > 0
	p.conns.Store(0)
	p.written.Store(0)
	p.answers.Store(0)

	r.began = time.Now()
	if p.timer == nil {
		p.timer = time.AfterFunc(p.limit, func() {
			p.cancel(fmt.Errorf("no answer within %v: %w", p.limit, context.DeadlineExceeded))
		})
	} else {
		p.timer.Reset(p.limit)
	}
	resp, err := d.client.Do(p.req)
	r.at = time.Now()
	if resp != nil {
		r.status, err = resp.StatusCode, nil
	}
	r.judgeAnswer(d, it, resp, err)
	r.cut = resp == nil && p.parent.Err() != nil
	r.unanswered = r.unanswered || p.written.Load() > p.answers.Load()
	if resp != nil {
		r.body = d.shownBody(resp)
		finish(resp)
	}
	p.spent = !p.timer.Stop() || resp == nil
	return r
}

// judgeAnswer fills in what an answer means, or that there was none.
func (r *result) judgeAnswer(d *delivery, it *item, resp *http.Response, err error) {
	if r.status != 0 || d.ctx.Err() == nil {
		d.counts.attempt(r.status, r.at.Sub(r.began))
	}
	// Without the context: an attempt that took too long is tried again.
	retry, _ := CheckRetry(context.Background(), resp, err)
	r.served = !retry
	if !retry && resp != nil {
		return
	}
	longest := d.retryWaitMax
	if _, r.askedToWait = asksToWait(resp); r.askedToWait {
		longest = d.retryAfterMax
	}
	r.wait = Backoff(d.retryWaitMin, longest, it.attempts, resp)
	switch r.status {
	case 0:
		r.err = err
		// The policy gives up on a certificate that does not verify, but that is the
		// same for every event, and is repaired like any other outage.
		r.served = !retry && !certificateFault(err) || badRedirect(err)
		r.unanswered = !unsent(err)
	case http.StatusBadGateway, http.StatusGatewayTimeout:
		r.unanswered = true
	case http.StatusServiceUnavailable:
	default:
		r.spoke = true
	}
}

// shownBody is how an answer begins that is neither a success nor a duplicate, if
// it may be logged.
func (d *delivery) shownBody(resp *http.Response) string {
	if resp.StatusCode < 300 || resp.StatusCode == http.StatusTooManyRequests ||
		resp.StatusCode == http.StatusSwitchingProtocols || d.redact.hidesBodies() {
		return ""
	}
	start, _ := io.ReadAll(io.LimitReader(resp.Body, maxLoggedBody+1))
	return cutBytes(string(start), maxLoggedBody)
}
