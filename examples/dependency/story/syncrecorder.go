package story

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/hashicorp/go-retryablehttp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/reference"

	"github.com/eventrecorder/events"
)

// SyncRecorder posts events on the goroutine of its caller, as recorders did
// when the story happened. It is here to be compared with, not to be used. It
// implements record.EventRecorder and writes no Kubernetes events.
type SyncRecorder struct {
	ctx    context.Context
	url    string
	client *http.Client
	plan   Plan
}

// NewSyncRecorder returns a recorder that posts to url with the client. ctx ends
// its waits when the program ends.
func NewSyncRecorder(ctx context.Context, url string, client *http.Client, plan Plan) *SyncRecorder {
	return &SyncRecorder{ctx, url, client, plan}
}

// Event implements record.EventRecorder.
func (r *SyncRecorder) Event(object runtime.Object, eventtype, reason, message string) {
	r.AnnotatedEventf(object, nil, eventtype, reason, "%s", message)
}

// Eventf implements record.EventRecorder.
func (r *SyncRecorder) Eventf(object runtime.Object, eventtype, reason, messageFmt string, args ...any) {
	r.AnnotatedEventf(object, nil, eventtype, reason, messageFmt, args...)
}

// AnnotatedEventf implements record.EventRecorder. It returns when the event is
// posted, or when all attempts have failed; nobody learns of that.
func (r *SyncRecorder) AnnotatedEventf(object runtime.Object, annotations map[string]string, eventtype, reason, messageFmt string, args ...any) {
	ref, err := reference.GetReference(scheme.Scheme, object)
	if err != nil {
		return
	}
	severity := "info"
	if eventtype == corev1.EventTypeWarning {
		severity = "error"
	}
	body, err := json.Marshal(events.Event{
		InvolvedObject:      *ref,
		Severity:            severity,
		Timestamp:           metav1.Now(),
		Message:             fmt.Sprintf(messageFmt, args...),
		Reason:              reason,
		Metadata:            annotations,
		ReportingController: "sync",
	})
	if err != nil {
		return
	}
	req, err := retryablehttp.NewRequestWithContext(r.ctx, http.MethodPost, r.url, body)
	if err != nil {
		return
	}
	attempts := 0
	client := &retryablehttp.Client{
		HTTPClient:   r.client,
		RetryMax:     4,
		RetryWaitMin: r.plan.WaitMin,
		RetryWaitMax: r.plan.WaitMax,
		Backoff:      retryablehttp.DefaultBackoff, // obeys Retry-After, however long
		CheckRetry: func(ctx context.Context, resp *http.Response, err error) (bool, error) {
			attempts++
			if attempts == 1 && resp != nil && resp.StatusCode == http.StatusTooManyRequests {
				return false, nil // a duplicate, but only on the first attempt
			}
			return retryablehttp.DefaultRetryPolicy(ctx, resp, err)
		},
	}
	if resp, err := client.Do(req); err == nil {
		_ = resp.Body.Close()
	}
}
