package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1"
	eventv1beta1 "github.com/fluxcd/pkg/apis/event/v1beta1"
	peer "github.com/fluxcd/pkg/runtime/events"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/tools/reference"

	"github.com/eventrecorder/events"
	"github.com/eventrecorder/events/eventstest"
)

// posts is what one recorder posts for one call.
type posts struct {
	t  *testing.T
	ep *eventstest.Endpoint
}

func newPosts(t *testing.T) posts {
	t.Helper()
	ep := eventstest.NewEndpoint(eventstest.WithWindow(0))
	t.Cleanup(ep.Close)
	return posts{t, ep}
}

// requests returns what has arrived.
func (p posts) requests() []eventstest.Request { return p.ep.Requests() }

// body returns the body of the one request, with the time taken out.
func (p posts) body() string {
	p.t.Helper()
	requests := p.requests()
	if len(requests) != 1 {
		p.t.Fatalf("%d requests arrived, want 1", len(requests))
	}
	return withoutTime(p.t, requests[0].Body)
}

var timestamp = regexp.MustCompile(`"timestamp":"([^"]*)"`)

// withoutTime replaces the time in a body, after a check that it is one of now.
func withoutTime(t *testing.T, body []byte) string {
	t.Helper()
	found := timestamp.FindAllSubmatch(body, -1)
	if len(found) != 1 {
		t.Fatalf("%d timestamps in %s, want 1", len(found), body)
	}
	at, err := time.Parse(time.RFC3339, string(found[0][1]))
	if err != nil {
		t.Fatal(err)
	}
	if age := time.Since(at); age < 0 || age > time.Minute {
		t.Errorf("timestamp %v is not of now", at)
	}
	return string(timestamp.ReplaceAll(body, []byte(`"timestamp":"-"`)))
}

// newOurs returns this library's recorder and a function that waits until all
// is posted.
func newOurs(t *testing.T, url string) (*events.EventRecorder, func()) {
	t.Helper()
	r, err := events.NewRecorderForScheme(scheme.Scheme, &record.FakeRecorder{}, silent(), url, controllerName,
		events.WithMetricsRegisterer(prometheus.NewRegistry()))
	if err != nil {
		t.Fatal(err)
	}
	return r, func() {
		t.Helper()
		if err := r.Shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func newPeer(t *testing.T, url string) peer.Recorder {
	t.Helper()
	r, err := peer.NewRecorder(silent(), url, controllerName,
		peer.WithScheme(scheme.Scheme), peer.WithLegacyEventRecorder(&record.FakeRecorder{}))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// bodies makes the call of our events.k8s.io view and of the peer.
func bodies(t *testing.T, c call) (ours, peers posts) {
	t.Helper()
	ours, peers = newPosts(t), newPosts(t)
	r, settle := newOurs(t, ours.ep.URL())
	r.EventsV1().AnnotatedEventf(c.object, c.related, c.annotations, c.eventtype, c.reason, c.action, c.format, c.args...)
	settle()
	newPeer(t, peers.ep.URL()).AnnotatedEventf(c.object, c.related, c.annotations, c.eventtype, c.reason, c.action, c.format, c.args...)
	return ours, peers
}

func TestEventsV1ViewPostsTheBytesOfThePeer(t *testing.T) {
	for _, c := range calls() {
		t.Run(c.name, func(t *testing.T) {
			ours, peers := bodies(t, c)
			if got, want := ours.body(), peers.body(); got != want {
				t.Errorf("bodies differ\n ours %s\npeers %s", got, want)
			}
		})
	}
}

// Eventf of the peer is its AnnotatedEventf without annotations, and so is ours.
func TestEventsV1EventfPostsTheBytesOfThePeer(t *testing.T) {
	c := calls()[0]
	ours, peers := newPosts(t), newPosts(t)
	r, settle := newOurs(t, ours.ep.URL())
	r.EventsV1().Eventf(c.object, c.object, c.eventtype, c.reason, c.action, "%d%%", 5)
	settle()
	newPeer(t, peers.ep.URL()).Eventf(c.object, c.object, c.eventtype, c.reason, c.action, "%d%%", 5)
	if got, want := ours.body(), peers.body(); got != want {
		t.Errorf("bodies differ\n ours %s\npeers %s", got, want)
	}
}

// It is not in the table because it does not survive decoding and encoding:
// U+FFFD is in it as an escape then, and as itself afterwards.
func TestInvalidUTF8IsPostedAsByThePeer(t *testing.T) {
	c := calls()[0]
	c.reason, c.action = "a\xffb", "\xf0\x9f"
	c.format = "one \xff two \xff\xfe three \xed\xa0\x80 end\xe2\x82"
	c.annotations = map[string]string{"k\xff": "v\xc0"}
	ours, peers := bodies(t, c)
	if got, want := ours.body(), peers.body(); got != want {
		t.Errorf("bodies differ\n ours %s\npeers %s", got, want)
	}
}

func TestRequestsHaveTheHeadOfThePeers(t *testing.T) {
	o, p := bodies(t, calls()[0])
	ours, peers := o.requests()[0], p.requests()[0]
	if ours.Method != peers.Method || ours.Path != peers.Path {
		t.Errorf("ours is %s %s, the peer's %s %s", ours.Method, ours.Path, peers.Method, peers.Path)
	}
	for _, name := range []string{"Content-Type", "Content-Length", "Transfer-Encoding", "Accept-Encoding"} {
		if got, want := ours.Header.Get(name), peers.Header.Get(name); got != want {
			t.Errorf("%s is %q, the peer's %q", name, got, want)
		}
	}
}

// The peer's type has no omitempty on its action. Ours leaves an empty one out,
// which older endpoints expect, and which decodes into the same.
func TestEmptyActionIsLeftOutAndNothingElseDiffers(t *testing.T) {
	for _, c := range calls() {
		t.Run(c.name, func(t *testing.T) {
			c.action = ""
			ours, peers := bodies(t, c)
			want := peers.body()
			if n := strings.Count(want, `,"action":""`); n != 1 {
				t.Fatalf("the peer posts the empty action %d times: %s", n, want)
			}
			if got, want := ours.body(), strings.Replace(want, `,"action":""`, "", 1); got != want {
				t.Errorf("bodies differ\n ours %s\npeers %s", got, want)
			}
		})
	}
}

// The core/v1 methods have neither a related object nor an action, and the
// peer that had them posted the v1beta1 type. The module in wiring/ makes the
// same calls to the last release of that peer.
func TestCoreV1MethodsPostTheBytesOfTheOlderType(t *testing.T) {
	for _, c := range calls() {
		t.Run(c.name, func(t *testing.T) {
			ours := newPosts(t)
			r, settle := newOurs(t, ours.ep.URL())
			r.AnnotatedEventf(c.object, c.annotations, c.eventtype, c.reason, c.format, c.args...)
			settle()
			want, err := json.Marshal(asV1beta1(t, c))
			if err != nil {
				t.Fatal(err)
			}
			if got, want := ours.body(), withoutTime(t, want); got != want {
				t.Errorf("bodies differ\nours %s\ntype %s", got, want)
			}
		})
	}
}

func asV1beta1(t *testing.T, c call) eventv1beta1.Event {
	t.Helper()
	ref, err := reference.GetReference(scheme.Scheme, c.object)
	if err != nil {
		t.Fatal(err)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	e := eventv1beta1.Event{
		InvolvedObject:      *ref,
		Severity:            eventv1beta1.EventSeverityInfo,
		Timestamp:           metav1.Now(),
		Message:             fmt.Sprintf(c.format, c.args...),
		Reason:              c.reason,
		Metadata:            map[string]string{},
		ReportingController: controllerName,
		ReportingInstance:   host,
	}
	if c.eventtype == corev1.EventTypeWarning {
		e.Severity = eventv1beta1.EventSeverityError
	}
	for k, v := range c.annotations {
		e.Metadata[k] = v
	}
	if o, ok := c.object.(metav1.Object); ok {
		for k, v := range o.GetAnnotations() {
			if strings.HasPrefix(k, eventv1beta1.Group+"/") {
				e.Metadata[k] = v
			}
		}
	}
	return e
}

// Nothing is lost: what was decoded, encoded again, is what was posted. The
// older type has no related object and no action; of the events.k8s.io view it
// keeps the rest, as it does of the peer's newest recorder.
func TestBodiesDecodeIntoBothGenerationsOfThePeersTypes(t *testing.T) {
	for _, c := range calls() {
		t.Run(c.name, func(t *testing.T) {
			core, view := newPosts(t), newPosts(t)
			r, settle := newOurs(t, core.ep.URL())
			r.AnnotatedEventf(c.object, c.annotations, c.eventtype, c.reason, c.format, c.args...)
			settle()
			r, settle = newOurs(t, view.ep.URL())
			r.EventsV1().AnnotatedEventf(c.object, c.related, c.annotations, c.eventtype, c.reason, c.action, c.format, c.args...)
			settle()
			coreBody, viewBody := core.requests()[0].Body, view.requests()[0].Body

			same := func(what string, got any, want []byte) {
				t.Helper()
				again, err := json.Marshal(got)
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(again, want) {
					t.Errorf("%s: decoded and encoded again\n it is %s\nposted %s", what, again, want)
				}
			}
			var beta eventv1beta1.Event
			strictly(t, coreBody, &beta)
			same("core/v1 methods, v1beta1", beta, coreBody)

			var v1 eventv1.Event
			strictly(t, viewBody, &v1)
			same("events.k8s.io view, v1", v1, viewBody)

			v1 = eventv1.Event{}
			strictly(t, coreBody, &v1)
			same("core/v1 methods, v1", v1, bytes.Replace(coreBody, []byte(`,"reason":`+quoted(t, c.reason)),
				[]byte(`,"reason":`+quoted(t, c.reason)+`,"action":""`), 1))

			beta = eventv1beta1.Event{}
			if err := json.Unmarshal(viewBody, &beta); err != nil {
				t.Fatal(err)
			}
			beta.Timestamp = metav1.Now() // the two calls may be of two seconds
			again, err := json.Marshal(beta)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := withoutTime(t, again), withoutTime(t, coreBody); got != want {
				t.Errorf("events.k8s.io view, v1beta1: it is %s\nwithout related object and action it was %s", got, want)
			}
		})
	}
}

// strictly decodes a body that must have no field unknown to the type.
func strictly(t *testing.T, body []byte, into any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		t.Fatalf("%v in %s", err, body)
	}
}

func quoted(t *testing.T, s string) string {
	t.Helper()
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestTraceIsPostedByNeither(t *testing.T) {
	c := calls()[0]
	c.eventtype = eventv1.EventTypeTrace
	ours, peers := bodies(t, c)
	if o, p := len(ours.requests()), len(peers.requests()); o != 0 || p != 0 {
		t.Errorf("ours posted %d times, the peer %d times; want 0 and 0", o, p)
	}
}

func TestBothSendOneRequestForADuplicate(t *testing.T) {
	c := calls()[0]
	ours, peers := newPosts(t), newPosts(t)
	ours.ep.Behave(eventstest.Status(http.StatusTooManyRequests))
	peers.ep.Behave(eventstest.Status(http.StatusTooManyRequests))
	r, settle := newOurs(t, ours.ep.URL())
	r.EventsV1().Eventf(c.object, nil, c.eventtype, c.reason, c.action, "all is well")
	settle()
	newPeer(t, peers.ep.URL()).Eventf(c.object, nil, c.eventtype, c.reason, c.action, "all is well")
	if o, p := len(ours.requests()), len(peers.requests()); o != 1 || p != 1 {
		t.Errorf("ours posted %d times, the peer %d times; want 1 and 1", o, p)
	}
}
