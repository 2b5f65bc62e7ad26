package story

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/eventrecorder/events"
	"github.com/eventrecorder/events/eventstest"
)

// Endpoint is what the story needs of an endpoint: an [eventstest.Endpoint] or,
// for a story in virtual time, an [eventstest.Transport]. Either should be made
// with eventstest.WithWindow and the plan's RetryAfter.
type Endpoint interface {
	URL() string
	Client() *http.Client
	Behave(eventstest.Behavior)
	Events() []events.Event
	Down()
	Up() error
}

// calmAnswers is how many events about B the endpoint answers before the
// trouble begins: it takes the first, and says that the second is a duplicate.
const calmAnswers = 2

// Trouble arranges what happens to the endpoint, and returns the client that a
// recorder must use for that. The endpoint becomes unreachable when it has
// answered two events about B, and comes back as soon as one attempt to post the
// third has failed. To an event that it has already it says 429, with the
// plan's RetryAfter.
//
// The client notes every attempt in the timeline. The outage depends on what it
// sees, not on time, so each telling of the story meets the same trouble,
// however busy the machine is.
func Trouble(ep Endpoint, plan Plan, timeline *Timeline) *http.Client {
	seconds := strconv.Itoa(int(plan.RetryAfter / time.Second))
	ep.Behave(func(w http.ResponseWriter, r *http.Request, normal http.Handler) {
		normal.ServeHTTP(&retryAfterWriter{w, seconds}, r)
	})
	client := *ep.Client()
	client.Transport = &trouble{endpoint: ep, next: client.Transport, timeline: timeline}
	return &client
}

// retryAfterWriter says how long in the time of the story. The endpoint itself
// says it as a date, which is not exact enough for a story that takes seconds.
type retryAfterWriter struct {
	http.ResponseWriter
	seconds string
}

func (w *retryAfterWriter) WriteHeader(status int) {
	if status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", w.seconds)
	}
	w.ResponseWriter.WriteHeader(status)
}

// trouble is a transport that sees the attempts to post an event.
type trouble struct {
	endpoint Endpoint
	next     http.RoundTripper
	timeline *Timeline

	mu       sync.Mutex // guards all below
	answered int        // attempts to post an event about B
	over     bool       // the outage
}

func (t *trouble) RoundTrip(req *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	_ = req.Body.Close()
	if err != nil {
		return nil, err
	}
	req = req.Clone(req.Context())
	req.Body = io.NopCloser(bytes.NewReader(body))
	resp, err := t.next.RoundTrip(req)

	var event events.Event
	if json.Unmarshal(body, &event) == nil {
		status := 0
		if err == nil {
			status = resp.StatusCode
		}
		object := event.InvolvedObject.Name
		t.timeline.note(time.Now(), Moment{Kind: Answered, Object: object, Reason: event.Reason, Status: status})
		if object == NameB {
			t.attempted(err)
		}
	}
	return resp, err
}

// attempted begins or ends the outage after an attempt to post an event about B.
func (t *trouble) attempted(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case err == nil:
		if t.answered++; t.answered == calmAnswers {
			t.endpoint.Down()
			t.timeline.note(time.Now(), Moment{Kind: Down})
		}
	case t.answered >= calmAnswers && !t.over:
		t.over = true
		// It fails only if something else has taken the port: then all
		// attempts to come fail too, and the story has another end.
		if t.endpoint.Up() == nil {
			t.timeline.note(time.Now(), Moment{Kind: Up})
		}
	}
}
