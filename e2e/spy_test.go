package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
)

// A spy keeps how the API server answered the requests of one manager, in the
// order of the answers. It is how a test learns that an event was refused, which
// client-go tells nobody, and that one was stored, without asking again and again.
type spy struct {
	mu      sync.Mutex
	answers []answer
	changed chan struct{} // closed and replaced with every answer
}

// answer is one request and its status.
type answer struct {
	method, path string
	status       int
}

func (a answer) String() string { return fmt.Sprintf("%s %s: %d", a.method, a.path, a.status) }

func newSpy() *spy { return &spy{changed: make(chan struct{})} }

// wrap is for rest.Config's Wrap.
func (s *spy) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(req)
		if err == nil {
			s.add(answer{req.Method, req.URL.Path, resp.StatusCode})
		}
		return resp, err
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func (s *spy) add(a answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers = append(s.answers, a)
	close(s.changed)
	s.changed = make(chan struct{})
}

// matching returns the answers that match so far, and a channel that is closed
// with the next answer.
func (s *spy) matching(match func(answer) bool) ([]answer, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []answer
	for _, a := range s.answers {
		if match(a) {
			found = append(found, a)
		}
	}
	return found, s.changed
}

// wait waits until n answers match, and returns those that do.
func (s *spy) wait(ctx context.Context, t *testing.T, n int, match func(answer) bool) []answer {
	t.Helper()
	for {
		found, changed := s.matching(match)
		if len(found) >= n {
			return found
		}
		select {
		case <-changed:
		case <-ctx.Done():
			all, _ := s.matching(func(answer) bool { return true })
			t.Fatalf("%d of %d answers of the API server: %v; all: %v", len(found), n, ctx.Err(), all)
		}
	}
}

// An api is one of the two APIs for events, and how a test uses it.
type api struct {
	name string
	path string // of the events of a namespace, with %s for it
	v1   bool   // events.k8s.io
}

var (
	coreV1   = api{name: "core_v1", path: "/api/v1/namespaces/%s/events"}
	eventsV1 = api{name: "events.k8s.io_v1", path: "/apis/events.k8s.io/v1/namespaces/%s/events", v1: true}
	bothAPIs = []api{coreV1, eventsV1}
)

// writes matches answers to requests that write events in the namespace, with
// one of the statuses, or with any if none is given.
func (a api) writes(namespace, method string, status ...int) func(answer) bool {
	path := fmt.Sprintf(a.path, namespace)
	return func(got answer) bool {
		return got.method == method && (len(status) == 0 || slices.Contains(status, got.status)) &&
			(got.path == path || strings.HasPrefix(got.path, path+"/"))
	}
}
