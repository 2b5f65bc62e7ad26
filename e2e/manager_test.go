package e2e

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/eventrecorder/events"
	"github.com/eventrecorder/events/eventstest"
)

const controllerName = "e2e-controller"

// setup is a controller to be tested. Only record or controller must be set.
type setup struct {
	// api is the API that Kubernetes events are written to. Default: core/v1.
	api api

	// user is who the controller is for the API server. Default: an administrator.
	// The manager's cache reads as an administrator in any case, so that a user
	// needs no right but those that recording needs.
	user *rest.Config

	// namespace is where the controller watches. Default: a new one.
	namespace string

	// object is of the kind that the controller reconciles. Default: a ConfigMap.
	object client.Object

	// record is called by the reconciler, once for each object.
	record func(ctx context.Context, recorder *events.EventRecorder, object client.Object)

	// controller adds a controller to the manager. Default: one that calls record.
	controller func(*running) error

	// endpoint is where notifications go. Default: a new one.
	endpoint *eventstest.Endpoint

	// manager and recorder change what both are made with.
	manager  func(*ctrl.Options)
	recorder []events.Option
}

// running is a manager with one controller whose reconciler records.
type running struct {
	t         *testing.T
	ctx       context.Context // of the test, with a limit
	namespace string
	endpoint  *eventstest.Endpoint
	spy       *spy
	manager   ctrl.Manager
	recorder  *events.EventRecorder
	stop      func() error // ends the manager, and returns what its Start does
}

// workers is how many objects are reconciled at a time.
const workers = 10

// limit is how long any test may take. It is there for tests that fail.
const limit = 30 * time.Second

func start(t *testing.T, s setup) *running {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	if s.api.name == "" {
		s.api = coreV1
	}
	if s.user == nil {
		s.user = adminConfig
	}
	if s.namespace == "" {
		s.namespace = newNamespace(t)
	}
	if s.object == nil {
		s.object = &corev1.ConfigMap{}
	}
	if s.endpoint == nil {
		s.endpoint = newEndpoint(t)
	}
	r := &running{
		t: t, ctx: ctx, namespace: s.namespace, endpoint: s.endpoint,
		spy: newSpy(),
	}

	config := rest.CopyConfig(s.user)
	config.Wrap(r.spy.wrap)
	options := ctrl.Options{
		Scheme:  scheme.Scheme,
		Logger:  logr.Discard(),
		Metrics: metricsserver.Options{BindAddress: "0"},
		Cache:   cache.Options{DefaultNamespaces: map[string]cache.Config{s.namespace: {}}},
		NewCache: func(_ *rest.Config, o cache.Options) (cache.Cache, error) {
			o.HTTPClient = nil // the user's
			return cache.New(adminConfig, o)
		},
	}
	if s.manager != nil {
		s.manager(&options)
	}
	var err error
	if r.manager, err = ctrl.NewManager(config, options); err != nil {
		t.Fatal(err)
	}

	recorderOptions := append([]events.Option{events.WithMetricsRegisterer(prometheus.NewRegistry())}, s.recorder...)
	if s.api.v1 {
		recorderOptions = append(recorderOptions, events.WithEventsV1Recorder(r.manager.GetEventRecorder(controllerName)))
	}
	r.recorder, err = events.NewRecorder(r.manager, logr.Discard(), s.endpoint.URL(), controllerName, recorderOptions...)
	if err != nil {
		t.Fatal(err)
	}

	if s.controller == nil {
		s.controller = s.recordOnce
	}
	if err := s.controller(r); err != nil {
		t.Fatal(err)
	}

	managerCtx, stopManager := context.WithCancel(context.Background())
	ended := make(chan struct{})
	var startErr error
	go func() {
		defer close(ended)
		startErr = r.manager.Start(managerCtx)
	}()
	r.stop = func() error {
		stopManager()
		<-ended
		return startErr
	}
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Error("manager:", err)
		}
	})
	return r
}

// recordOnce adds a controller that calls record.
func (s setup) recordOnce(r *running) error {
	skip := true
	return ctrl.NewControllerManagedBy(r.manager).
		Named(controllerName).
		For(s.object).
		WithOptions(controller.Options{SkipNameValidation: &skip, MaxConcurrentReconciles: workers}).
		Complete(reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
			object := s.object.DeepCopyObject().(client.Object)
			if err := r.manager.GetClient().Get(ctx, req.NamespacedName, object); err != nil {
				return reconcile.Result{}, client.IgnoreNotFound(err)
			}
			s.record(ctx, r.recorder, object)
			return reconcile.Result{}, nil
		}))
}

// written waits until the API server has taken that many new events.
func (r *running) written(a api, namespace string, n int) {
	r.t.Helper()
	r.spy.wait(r.ctx, r.t, n, a.writes(namespace, http.MethodPost, http.StatusCreated))
}

// notified waits until the endpoint has taken n events.
func (r *running) notified(n int) []events.Event {
	r.t.Helper()
	taken, err := r.endpoint.Wait(r.ctx, n)
	if err != nil {
		r.t.Fatalf("%d of %d notifications: %v", len(taken), n, err)
	}
	return taken
}

func newEndpoint(t *testing.T, opts ...eventstest.Option) *eventstest.Endpoint {
	ep := eventstest.NewEndpoint(opts...)
	t.Cleanup(ep.Close)
	return ep
}

// newNamespace makes a namespace. Nothing ever removes it: there is no namespace
// controller.
func newNamespace(t *testing.T) string {
	t.Helper()
	ns, err := admin.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return ns.Name
}

// newConfigMap makes an object to record about.
func newConfigMap(t *testing.T, namespace, name string) *corev1.ConfigMap {
	t.Helper()
	object, err := admin.CoreV1().ConfigMaps(namespace).Create(t.Context(),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return object
}

// storedEvents returns the events of a namespace about objects of that name.
func storedEvents(t *testing.T, namespace, name string) []corev1.Event {
	t.Helper()
	list, err := admin.CoreV1().Events(namespace).List(t.Context(), metav1.ListOptions{
		FieldSelector: "involvedObject.name=" + name,
	})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// storedEvent is storedEvents where there must be one.
func storedEvent(t *testing.T, namespace, name string) corev1.Event {
	t.Helper()
	stored := storedEvents(t, namespace, name)
	if len(stored) != 1 {
		t.Fatalf("%d events about %s in namespace %s, want 1: %v", len(stored), name, namespace, stored)
	}
	return stored[0]
}

// abridged shows a text that may be long.
func abridged(s string) string {
	if len(s) > 80 {
		return s[:40] + " … " + s[len(s)-40:]
	}
	return strings.ToValidUTF8(s, "?")
}
