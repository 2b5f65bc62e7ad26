package events_test

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	events "github.com/eventrecorder/events"
	"github.com/eventrecorder/events/eventstest"
)

// The code of the README stands in this file, word for word: see
// TestTheCodeOfTheReadmeCompiles.

var eventsAddr = flag.String("events-addr", "http://notification-controller.flux-system.svc.cluster.local./",
	"The address of the events receiver; empty means Kubernetes events only.")

func setUp(mgr ctrl.Manager) error {
	recorder, err := events.NewRecorder(mgr, ctrl.Log, *eventsAddr, "my-controller")
	if err != nil {
		return err
	}
	return ctrl.NewControllerManagedBy(mgr).
		For(newKustomization()).
		Complete(&reconciler{Client: mgr.GetClient(), EventRecorder: recorder})
}

type reconciler struct {
	client.Client
	record.EventRecorder
}

// +kubebuilder:rbac:groups="",resources=events,verbs=create;patch

func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	obj := newKustomization()
	if err := r.Get(ctx, req.NamespacedName, obj); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	revision, _, _ := unstructured.NestedString(obj.Object, "status", "lastAttemptedRevision")
	r.AnnotatedEventf(obj, map[string]string{"kustomize.toolkit.fluxcd.io/revision": revision},
		corev1.EventTypeNormal, "ReconciliationSucceeded", "Applied revision %s", revision)
	return ctrl.Result{}, nil
}

// newKustomization stands for the type of your own API (see below what alerts).
func newKustomization() *unstructured.Unstructured {
	obj := &unstructured.Unstructured{}
	obj.SetAPIVersion("kustomize.toolkit.fluxcd.io/v1")
	obj.SetKind("Kustomization")
	return obj
}

// A controller makes one recorder from its manager, which drains it when it
// stops.
func ExampleNewRecorder() {
	_ = setUp // see above: a manager needs an API server, which an example has not
}

func ExampleNewRecorderForScheme() {
	endpoint := eventstest.NewEndpoint()
	defer endpoint.Close()

	recorder, err := events.NewRecorderForScheme(scheme.Scheme, record.NewFakeRecorder(10), logr.Discard(),
		endpoint.URL(), "my-controller")
	if err != nil {
		fmt.Println(err)
		return
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "podinfo", Namespace: "apps"}}
	recorder.Event(pod, corev1.EventTypeNormal, "Progressing", "Health check passed")
	recorder.Event(pod, corev1.EventTypeWarning, "Failed", "Image not found")

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := recorder.Shutdown(ctx); err != nil {
		fmt.Println(err)
	}
	for _, e := range endpoint.Events() {
		fmt.Println(e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Severity, e.Reason, e.Message)
	}
	// Output:
	// Pod podinfo info Progressing Health check passed
	// Pod podinfo error Failed Image not found
}

func ExampleEventRecorder_EventsV1() {
	endpoint := eventstest.NewEndpoint()
	defer endpoint.Close()
	recorder, err := events.NewRecorderForScheme(scheme.Scheme, record.NewFakeRecorder(10), logr.Discard(),
		endpoint.URL(), "my-controller", events.WithMetricsRegisterer(prometheus.NewRegistry()))
	if err != nil {
		fmt.Println(err)
		return
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "podinfo", Namespace: "apps"}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
	recorder.EventsV1().Eventf(pod, node, corev1.EventTypeNormal, "Scheduled", "Bind", "Assigned to %s", node.Name)
	_ = recorder.Shutdown(context.Background())

	e := endpoint.Events()[0]
	fmt.Println(e.Message, "|", e.Action, "|", e.RelatedObject.Kind, e.RelatedObject.Name)
	// Output: Assigned to node-1 | Bind | Node node-1
}

// bearer adds a token to each request.
type bearer struct {
	token string
	next  http.RoundTripper
}

func (b bearer) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+b.token)
	return b.next.RoundTrip(req)
}

// An endpoint that wants a token, and closes idle connections after 30 s.
func ExampleWithHTTPClient() {
	endpoint := eventstest.NewEndpoint()
	defer endpoint.Close()
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.IdleConnTimeout = 20 * time.Second
	defer transport.CloseIdleConnections()

	recorder, err := events.NewRecorderForScheme(scheme.Scheme, nil, logr.Discard(), endpoint.URL(), "my-controller",
		events.WithHTTPClient(&http.Client{Transport: bearer{"s3cret", transport}}))
	if err != nil {
		fmt.Println(err)
		return
	}
	recorder.Event(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "podinfo"}}, corev1.EventTypeNormal, "Ready", "all is well")
	_ = recorder.Shutdown(context.Background())
	fmt.Println(endpoint.Requests()[0].Header.Get("Authorization"))
	// Output: Bearer s3cret
}

// A negative number of retries and an address without a scheme: both are
// reported, and nothing is built.
func ExampleOption() {
	_, err := events.NewRecorderForScheme(scheme.Scheme, nil, logr.Discard(), "localhost:9090", "my-controller",
		events.WithRetryMax(-1))
	fmt.Println(err)
	// Output:
	// events: WithRetryMax(-1): must not be negative
	// events: notification endpoint "localhost:9090": must be an absolute http or https URL: it does not begin with http:// or https://
}

func testingYourController(ctx context.Context, obj *corev1.Pod) (err error) {
	ep := eventstest.NewEndpoint() // answers as notification-controller does
	defer ep.Close()
	recorder, err := events.NewRecorderForScheme(scheme.Scheme, record.NewFakeRecorder(10),
		logr.Discard(), ep.URL(), "my-controller")
	if err != nil {
		return err
	}
	defer recorder.Shutdown(ctx) // before the endpoint closes
	recorder.Event(obj, corev1.EventTypeNormal, "Ready", "all is well")
	received, err := ep.Wait(ctx, 1) // no sleeping

	if err == nil && received[0].Message != "all is well" {
		err = fmt.Errorf("arrived: %+v", received)
	}
	return err
}

func movingToEventsV1(mgr ctrl.Manager, log logr.Logger, endpoint string) (*events.EventsV1Recorder, error) {
	recorder, err := events.NewRecorder(mgr, log, endpoint, "my-controller")
	eventsV1 := recorder.EventsV1() // Eventf and AnnotatedEventf with a related object and an action
	return eventsV1, err
}

func writingThroughEventsV1(mgr ctrl.Manager, log logr.Logger, endpoint string) (*events.EventRecorder, error) {
	recorder, err := events.NewRecorder(mgr, log, endpoint, "my-controller",
		events.WithEventsV1Recorder(mgr.GetEventRecorder("my-controller")))
	return recorder, err
}

func afterALostLease(ctx, drainCtx context.Context, mgr ctrl.Manager, recorder *events.EventRecorder) error {
	err := mgr.Start(ctx)
	_ = recorder.Shutdown(drainCtx) // from context.Background(), a few seconds; over at once if the manager has drained
	return err
}
