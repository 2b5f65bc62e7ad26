package events

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
)

// BenchmarkRecord measures a recording call: a typed object, two annotations,
// one format argument. "wrapped" is the baseline, client-go's recorder alone;
// the others are this recorder around it, with an endpoint in the state that
// the name says. Calls come in bursts. What a burst leaves behind, posts and
// Kubernetes events alike, is settled while the timer stands: an endpoint that
// answers begins to do so then. So it is the call that is measured and not the
// competition for processors.
func BenchmarkRecord(b *testing.B) {
	b.Run("wrapped", func(b *testing.B) {
		benchmarkRecord(b, func(wrapped record.EventRecorder) (record.EventRecorder, func()) { return wrapped, func() {} })
	})
	for _, state := range endpointStates {
		b.Run("endpoint="+state.name, func(b *testing.B) {
			registry := prometheus.NewRegistry()
			over, cancel := context.WithCancel(context.Background())
			cancel()
			benchmarkRecord(b, func(wrapped record.EventRecorder) (record.EventRecorder, func()) {
				settling := make(chan struct{})
				transport := roundTripper(func(r *http.Request) (*http.Response, error) { return state.answer(r, settling) })
				ours, err := NewRecorderForScheme(scheme.Scheme, wrapped, logr.Discard(), "http://endpoint/", "bench",
					WithHTTPClient(&http.Client{Transport: transport}), WithMetricsRegisterer(registry))
				if err != nil {
					b.Fatal(err)
				}
				return ours, func() {
					close(settling)
					if state.answers {
						if err := ours.Flush(context.Background()); err != nil {
							b.Fatal(err)
						}
					}
					_ = ours.Shutdown(over)
				}
			})
		})
	}
}

var endpointStates = []struct {
	name    string
	answers bool
	answer  func(r *http.Request, settling <-chan struct{}) (*http.Response, error)
}{
	{"202", true, answerWith(202)},
	{"429", true, answerWith(429)},
	{"hangs", false, func(r *http.Request, _ <-chan struct{}) (*http.Response, error) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}},
	{"refuses", false, func(*http.Request, <-chan struct{}) (*http.Response, error) { return nil, syscall.ECONNREFUSED }},
}

func answerWith(status int) func(*http.Request, <-chan struct{}) (*http.Response, error) {
	return func(r *http.Request, settling <-chan struct{}) (*http.Response, error) {
		<-settling
		_, _ = io.Copy(io.Discard, r.Body)
		return &http.Response{StatusCode: status, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
	}
}

func benchmarkRecord(b *testing.B, wrap func(record.EventRecorder) (record.EventRecorder, func())) {
	const burst = 100
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "podinfo-7d9c5b8f6d-abcde", Namespace: "apps", UID: "6c1ee2f5-5a3f-4c83-a1a4-6b61e9b6d8f0", ResourceVersion: "123456",
	}}
	annotations := map[string]string{
		"kustomize.toolkit.fluxcd.io/revision": "main@sha1:3b2a1c",
		"event.toolkit.fluxcd.io/cluster":      "staging",
	}
	broadcaster := record.NewBroadcaster()
	defer broadcaster.Shutdown()
	var written atomic.Int64
	watched := make(chan struct{})
	watch := broadcaster.StartEventWatcher(func(*corev1.Event) {
		if written.Add(1)%burst == 0 {
			watched <- struct{}{}
		}
	})
	defer watch.Stop()
	wrapped := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "bench"})
	recorder, settle := wrap(wrapped)
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		recorder.AnnotatedEventf(pod, annotations, "Normal", "Progressing", "Health check passed in %d ms", n)
		if n++; n%burst == 0 {
			b.StopTimer()
			<-watched
			settle()
			recorder, settle = wrap(wrapped)
			b.StartTimer()
		}
	}
	settle()
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// underRace says that the race detector is on.
var underRace bool

func TestARecordingCallAllocatesAtMostFourTimesMoreThanTheWrappedRecorder(t *testing.T) {
	if underRace {
		t.Skip("the race detector allocates too")
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "podinfo", Namespace: "apps", UID: "6c1ee2f5", ResourceVersion: "123456"}}
	annotations := map[string]string{"kustomize.toolkit.fluxcd.io/revision": "main@sha1:3b2a1c", "event.toolkit.fluxcd.io/cluster": "staging"}
	broadcaster := record.NewBroadcaster()
	defer broadcaster.Shutdown()
	wrapped := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "test"})
	hangs := roundTripper(func(r *http.Request) (*http.Response, error) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	})
	ours, err := NewRecorderForScheme(scheme.Scheme, wrapped, logr.Discard(), "http://endpoint/", "test",
		WithHTTPClient(&http.Client{Transport: hangs}), WithMetricsRegisterer(prometheus.NewRegistry()))
	if err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(context.Background())
	cancel()
	defer func() { _ = ours.Shutdown(over) }()
	allocations := func(r record.EventRecorder) float64 {
		n := 0
		return testing.AllocsPerRun(400, func() {
			n++
			r.AnnotatedEventf(pod, annotations, "Normal", "Progressing", "Health check passed in %d ms", n)
		})
	}
	ours.Event(pod, "Normal", "Progressing", "the lane and the worker are there") // as in any burst but for its first call
	base := allocations(wrapped)
	if more := allocations(ours) - base; more > 4 {
		t.Errorf("%v allocations more than %v", more, base)
	}
}
