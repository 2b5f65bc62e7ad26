package eventstest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"

	"github.com/eventrecorder/events"
	"github.com/eventrecorder/events/eventstest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// endpoint is what Endpoint and Transport have in common.
type endpoint interface {
	URL() string
	Client() *http.Client
	Close()
	Down()
	Up() error
	Forget()
	Behave(eventstest.Behavior)
	BehaveNext(...eventstest.Behavior)
	Requests() []eventstest.Request
	Events() []events.Event
	Wait(context.Context, int) ([]events.Event, error)
	WaitRequests(context.Context, int) ([]eventstest.Request, error)
	WaitFor(context.Context, func(events.Event) bool) (events.Event, error)
}

var (
	_ endpoint          = (*eventstest.Endpoint)(nil)
	_ endpoint          = (*eventstest.Transport)(nil)
	_ http.RoundTripper = (*eventstest.Transport)(nil)
)

// forBoth runs the test against an endpoint with a socket and against one
// without. What it proves holds for both.
func forBoth(t *testing.T, test func(*testing.T, endpoint), opts ...eventstest.Option) {
	t.Helper()
	t.Run("Endpoint", func(t *testing.T) {
		ep := eventstest.NewEndpoint(opts...)
		defer ep.Close()
		test(t, ep)
	})
	t.Run("Transport", func(t *testing.T) {
		tr := eventstest.NewTransport(opts...)
		defer tr.Close()
		test(t, tr)
	})
}

func patience(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func message(text string) events.Event {
	return events.Event{
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "apps.example.com/v1", Kind: "App", Namespace: "ns", Name: "app",
		},
		Severity: "info",
		Message:  text,
		Reason:   "Ready",
	}
}

func encode(t *testing.T, event events.Event) string {
	t.Helper()
	body, err := json.Marshal(event)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func address(ep endpoint) string {
	_, addr, _ := strings.Cut(ep.URL(), "://")
	return addr
}

type answer struct {
	status int
	header http.Header
	body   string
}

// tryPost posts with a context of its own, as a client that may give up.
func tryPost(ctx context.Context, ep endpoint, body string) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, ep.URL(), strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	return do(ep.Client(), req)
}

func do(client *http.Client, req *http.Request) (answer, error) {
	resp, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	var buf bytes.Buffer
	if _, err := io.Copy(&buf, resp.Body); err != nil {
		return answer{}, err
	}
	return answer{resp.StatusCode, resp.Header, buf.String()}, nil
}

func post(t *testing.T, ep endpoint, body string) answer {
	t.Helper()
	got, err := tryPost(t.Context(), ep, body)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func wantStatus(t *testing.T, got answer, want int) {
	t.Helper()
	if got.status != want {
		t.Errorf("answered %d, want %d", got.status, want)
	}
}

// wantAnswer posts on a goroutine of the test's own.
func wantAnswer(t *testing.T, ep endpoint, body string, want int) {
	t.Helper()
	got, err := tryPost(t.Context(), ep, body)
	if err != nil {
		t.Error(err)
	}
	wantStatus(t, got, want)
}

func statuses(requests []eventstest.Request) string {
	var all []int
	for _, r := range requests {
		all = append(all, r.Status)
	}
	return fmt.Sprint(all)
}

func texts(taken []events.Event) string {
	var all []string
	for _, e := range taken {
		all = append(all, e.Message)
	}
	return strings.Join(all, " ")
}
