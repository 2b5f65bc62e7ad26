package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1"
	peer "github.com/fluxcd/pkg/runtime/events"
	"github.com/go-logr/logr"
	"github.com/hashicorp/go-retryablehttp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/tools/reference"

	"github.com/eventrecorder/events"
)

const (
	controllerName = "compare"
	action         = "Reconciling" // where an API wants one
)

// recorder is what is compared: something that is told of events.
type recorder interface {
	AnnotatedEventf(object runtime.Object, annotations map[string]string, eventtype, reason, messageFmt string, args ...any)

	// wait returns when nothing of what was recorded is in progress, or when
	// ctx is done.
	wait(ctx context.Context) error

	// stop ends what is in progress and waits for it to end.
	stop()
}

// newRecorder returns the recorder of a column, for an endpoint. wrapped writes
// the Kubernetes events, and may be nil; errors are logged to log.
func newRecorder(c column, url string, wrapped record.EventRecorder, log logr.Logger, opts ...events.Option) (recorder, error) {
	switch c {
	case ours:
		return newOurRecorder(url, wrapped, log, opts...)
	case fluxPeer:
		options := []peer.RecorderOption{peer.WithScheme(scheme.Scheme)}
		if wrapped != nil {
			options = append(options, peer.WithLegacyEventRecorder(wrapped))
		}
		r, err := peer.NewRecorder(log, url, controllerName, options...)
		return peerRecorder{r}, err
	case goroutine:
		return newGoroutines(url, wrapped), nil
	case clientGo:
		return alone{wrapped}, nil
	}
	return nil, fmt.Errorf("%v is no recorder", c)
}

// ourRecorder is this library's.
type ourRecorder struct {
	*events.EventRecorder
	metrics *prometheus.Registry
}

func newOurRecorder(url string, wrapped record.EventRecorder, log logr.Logger, opts ...events.Option) (ourRecorder, error) {
	metrics := prometheus.NewRegistry()
	r, err := events.NewRecorderForScheme(scheme.Scheme, wrapped, log, url, controllerName,
		append([]events.Option{events.WithMetricsRegisterer(metrics)}, opts...)...)
	return ourRecorder{r, metrics}, err
}

func (r ourRecorder) wait(ctx context.Context) error { return r.Flush(ctx) }
func (r ourRecorder) stop()                          { _ = r.Shutdown(over) }

// over is a context that has ended.
var over = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// peerRecorder is that of github.com/fluxcd/pkg/runtime/events. It posts before
// it returns, so there is nothing to wait for.
type peerRecorder struct{ peer.Recorder }

func (r peerRecorder) AnnotatedEventf(object runtime.Object, annotations map[string]string, eventtype, reason, messageFmt string, args ...any) {
	r.Recorder.AnnotatedEventf(object, nil, annotations, eventtype, reason, action, messageFmt, args...)
}

func (peerRecorder) wait(context.Context) error { return nil }
func (peerRecorder) stop()                      {}

// alone is client-go's recorder, which posts nothing.
type alone struct{ record.EventRecorder }

func (alone) wait(context.Context) error { return nil }
func (alone) stop()                      {}

// goroutines is the obvious cure for a recorder that blocks: what the peer does,
// with "go" before the post. The client is set up as the peer's.
type goroutines struct {
	wrapped record.EventRecorder // may be nil
	client  *retryablehttp.Client
	url     string
	host    string

	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
}

func newGoroutines(url string, wrapped record.EventRecorder) *goroutines {
	client := retryablehttp.NewClient()
	client.HTTPClient.Timeout = 5 * time.Second
	client.Logger = nil
	client.CheckRetry = func(ctx context.Context, resp *http.Response, err error) (bool, error) {
		if resp != nil && resp.StatusCode == http.StatusTooManyRequests {
			return false, nil
		}
		return retryablehttp.ErrorPropagatedRetryPolicy(ctx, resp, err)
	}
	host, _ := os.Hostname()
	g := &goroutines{wrapped: wrapped, client: client, url: url, host: host}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	return g
}

func (g *goroutines) AnnotatedEventf(object runtime.Object, annotations map[string]string, eventtype, reason, messageFmt string, args ...any) {
	if g.wrapped != nil {
		g.wrapped.AnnotatedEventf(object, annotations, eventtype, reason, messageFmt, args...)
	}
	ref, err := reference.GetReference(scheme.Scheme, object)
	if err != nil {
		return
	}
	event := eventv1.Event{
		InvolvedObject:      *ref,
		Severity:            eventv1.EventSeverityInfo,
		Timestamp:           metav1.Now(),
		Message:             fmt.Sprintf(messageFmt, args...),
		Reason:              reason,
		Action:              action,
		Metadata:            annotations,
		ReportingController: controllerName,
		ReportingInstance:   g.host,
	}
	if eventtype == corev1.EventTypeWarning {
		event.Severity = eventv1.EventSeverityError
	}
	body, err := json.Marshal(event)
	if err != nil {
		return
	}
	g.running.Add(1)
	go func() {
		defer g.running.Done()
		g.post(body)
	}()
}

func (g *goroutines) post(body []byte) {
	req, err := retryablehttp.NewRequestWithContext(g.ctx, http.MethodPost, g.url, body)
	if err != nil {
		return
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := g.client.Do(req)
	if err != nil {
		return
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
}

func (g *goroutines) wait(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		g.running.Wait()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g *goroutines) stop() {
	g.cancel()
	g.running.Wait()
	g.client.HTTPClient.CloseIdleConnections()
}
