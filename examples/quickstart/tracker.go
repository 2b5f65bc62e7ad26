package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/record"

	"github.com/eventrecorder/events"
)

// tracker follows each event from the call to its outcome. The recorder tells
// nobody what becomes of a single event: that is pieced together from the
// metrics around a call and from the answers of the endpoint.
type tracker struct {
	timeline *timeline
	registry *prometheus.Registry
	recorder record.EventRecorder // with its metrics in the registry

	// mu guards all below. It is held over a call to the recorder and the
	// reading of the metrics after it, so that no answer is booked in between.
	mu   sync.Mutex
	rows []*row
}

// row is an event that was recorded.
type row struct {
	entry
	number   int
	recorded time.Time
	call     time.Duration // how long the call took
	tries    int
	outcome  string // empty until it is known
}

// record records an event and notes how long that took.
func (t *tracker) record(e entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.readMetrics().outcomes["coalesced"]

	began := time.Now()
	t.recorder.Event(object(e.object), eventType(e), e.reason, e.message)
	r := &row{entry: e, number: len(t.rows) + 1, recorded: began, call: time.Since(began)}

	note := ""
	if t.readMetrics().outcomes["coalesced"] > before {
		// An event that waited and says the same was folded into this one.
		if same := t.last(e.object); same != nil {
			same.outcome = "coalesced"
			note = fmt.Sprintf("coalesces %d", same.number)
		}
	}
	t.rows = append(t.rows, r)
	t.timeline.recorded(r, note)
}

// last is the latest event about the object that has no outcome yet.
func (t *tracker) last(object string) *row {
	for i := len(t.rows) - 1; i >= 0; i-- {
		if r := t.rows[i]; r.object == object && r.outcome == "" {
			return r
		}
	}
	return nil
}

// answered notes the answer to one attempt to post an event; the status is 0 if
// there was none. Events about one object arrive in the order in which they
// were recorded, so it is the first that fits.
func (t *tracker) answered(event events.Event, status int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	message := strings.TrimSuffix(event.Message, "… (truncated)")
	for _, r := range t.rows {
		if r.outcome != "" || r.object != event.InvolvedObject.Name || r.reason != event.Reason ||
			!strings.HasPrefix(r.message, message) {
			continue
		}
		r.tries++
		if r.outcome = finalOutcome(status); r.outcome != "" {
			t.timeline.answered(r, status)
		}
		return
	}
}

// finalOutcome is the outcome of an answer after which there is no other
// attempt, or empty.
func finalOutcome(status int) string {
	switch {
	case status >= 200 && status < 300:
		return "delivered"
	case status == http.StatusTooManyRequests:
		return "duplicate"
	case status >= 300 && status < 500 || status == http.StatusNotImplemented:
		return "rejected"
	}
	return ""
}

// observer lets the tracker see every attempt.
type observer struct {
	next    http.RoundTripper
	tracker *tracker
}

func (o observer) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	_ = req.Body.Close()
	if err != nil {
		return nil, err
	}
	req = req.Clone(req.Context())
	req.Body = io.NopCloser(bytes.NewReader(body))

	resp, err := o.next.RoundTrip(req)
	status := 0
	if err == nil {
		status = resp.StatusCode
	}
	var event events.Event
	if json.Unmarshal(body, &event) == nil {
		o.tracker.answered(event, status)
	}
	return resp, err
}
