package events

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"net/http/httptrace"
)

// answers202 is a transport in memory: it reads the body and answers 202, and
// tells a trace what net/http's own would tell it.
type answers202 struct{}

func (answers202) RoundTrip(r *http.Request) (*http.Response, error) {
	trace := httptrace.ContextClientTrace(r.Context())
	if trace != nil {
		trace.GotConn(httptrace.GotConnInfo{})
	}
	_, _ = io.Copy(io.Discard, r.Body)
	_ = r.Body.Close()
	if trace != nil {
		trace.WroteRequest(httptrace.WroteRequestInfo{})
	}
	return &http.Response{StatusCode: 202, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
}

// BenchmarkDeliver measures what a delivered event costs beside its connection.
// "bare" is the baseline: a loop of posts of the same size by net/http's client.
func BenchmarkDeliver(b *testing.B) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "podinfo-7d9c5b8f6d-abcde", Namespace: "apps", UID: "6c1ee2f5-5a3f-4c83-a1a4-6b61e9b6d8f0", ResourceVersion: "123456",
	}}
	b.Run("bare", func(b *testing.B) {
		body := bytes.Repeat([]byte("x"), 600)
		client := &http.Client{Transport: answers202{}}
		b.ReportAllocs()
		for b.Loop() {
			req, _ := http.NewRequestWithContext(context.Background(), http.MethodPost, "http://endpoint/", bytes.NewReader(body))
			req.Header.Set("Content-Type", "application/json")
			resp, err := client.Do(req)
			if err != nil {
				b.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
		}
	})
	b.Run("ours", func(b *testing.B) {
		r, err := NewRecorderForScheme(scheme.Scheme, nil, logr.Discard(), "http://endpoint/", "bench",
			WithHTTPClient(&http.Client{Transport: answers202{}}), WithMetricsRegisterer(prometheus.NewRegistry()), WithQueueBytes(1<<30))
		if err != nil {
			b.Fatal(err)
		}
		q := r.shared.delivery.queue
		b.ReportAllocs()
		n := 0
		for b.Loop() {
			if n%1000 == 0 {
				b.StopTimer()
				q.mu.Lock()
				q.stopped = true
				q.mu.Unlock()
				for i := range 1000 {
					r.AnnotatedEventf(pod, map[string]string{"example.com/revision": "main@sha1:3b2a1c"}, "Normal", "Progressing", "Health check %d passed in %d ms", n, i)
				}
				q.mu.Lock()
				q.stopped = false
				q.workers++
				q.mu.Unlock()
				b.StartTimer()
				r.shared.delivery.work()
			}
			n++
		}
	})
}

var _ = fmt.Sprint
var _ = time.Now
