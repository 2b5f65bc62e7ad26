package events

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptrace"
	"runtime"
	"testing"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
)

// heldEndpoint is a transport in memory that answers 202, from the moment on at
// which the channel is closed. It tells a trace what net/http's own would tell it.
type heldEndpoint <-chan struct{}

func (h heldEndpoint) RoundTrip(r *http.Request) (*http.Response, error) {
	<-h
	trace := httptrace.ContextClientTrace(r.Context())
	if trace != nil {
		trace.GotConn(httptrace.GotConnInfo{})
	}
	_, _ = io.Copy(io.Discard, r.Body)
	_ = r.Body.Close()
	if trace != nil {
		trace.WroteRequest(httptrace.WroteRequestInfo{})
		trace.GotFirstResponseByte()
	}
	return &http.Response{StatusCode: http.StatusAccepted, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
}

// pendingEvents returns a function that delivers so many events, one after the
// other: they are in the queue already.
func pendingEvents(tb testing.TB, events int) (deliver func()) {
	tb.Helper()
	held := make(chan struct{})
	r, err := NewRecorderForScheme(scheme.Scheme, nil, logr.Discard(), "http://endpoint/", "bench",
		WithHTTPClient(&http.Client{Transport: heldEndpoint(held)}), WithMetricsRegisterer(prometheus.NewRegistry()),
		WithConcurrency(1))
	if err != nil {
		tb.Fatal(err)
	}
	r.shared.delivery.plainTransport = true // as good as
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "podinfo-7d9c5b8f6d-abcde", Namespace: "apps", UID: "6c1ee2f5-5a3f-4c83-a1a4-6b61e9b6d8f0", ResourceVersion: "123456",
	}}
	annotations := map[string]string{
		"kustomize.toolkit.fluxcd.io/revision": "main@sha1:3b2a1c",
		"event.toolkit.fluxcd.io/cluster":      "staging",
	}
	for i := range events {
		r.AnnotatedEventf(pod, annotations, "Normal", "Progressing", "Health check passed in %d ms", i)
	}
	return func() {
		close(held)
		if err := r.Flush(context.Background()); err != nil {
			tb.Fatal(err)
		}
	}
}

// BenchmarkDeliver measures what a delivered event costs beside its connection:
// "bare" is the baseline, a loop of posts of the same size by net/http's client,
// and "ours" delivers what is in the queue already.
func BenchmarkDeliver(b *testing.B) {
	b.Run("bare", func(b *testing.B) {
		open := make(chan struct{})
		close(open)
		client := &http.Client{Transport: heldEndpoint(open)}
		body := bytes.Repeat([]byte("x"), 450)
		b.ReportAllocs()
		for b.Loop() {
			resp, err := client.Post("http://endpoint/", "application/json", bytes.NewReader(body))
			if err != nil {
				b.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
	})
	b.Run("ours", func(b *testing.B) {
		const burst = 1000
		b.ReportAllocs()
		n := 0
		for b.Loop() {
			if n%burst == 0 {
				b.StopTimer()
				deliver := pendingEvents(b, burst)
				b.StartTimer()
				deliver()
			}
			n++
		}
	})
}

func TestADeliveredEventCostsAtMostTwentyAllocations(t *testing.T) {
	const events = 1000
	deliver := pendingEvents(t, events)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	deliver()
	runtime.ReadMemStats(&after)
	if each := float64(after.Mallocs-before.Mallocs) / events; each > 20 {
		t.Errorf("%.1f allocations", each)
	}
}
