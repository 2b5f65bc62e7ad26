package events_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	events "github.com/eventrecorder/events"
	"github.com/eventrecorder/events/eventstest"
)

// newManager makes a real manager of an API server that does not exist: nothing
// that these tests need of it asks one.
func newManager(t *testing.T, options ctrl.Options) manager.Manager {
	t.Helper()
	options.Scheme = scheme.Scheme
	options.Logger = logr.Discard()
	options.Metrics = metricsserver.Options{BindAddress: "0"}
	options.MapperProvider = func(*rest.Config, *http.Client) (meta.RESTMapper, error) {
		return meta.NewDefaultRESTMapper(nil), nil
	}
	mgr, err := ctrl.NewManager(&rest.Config{Host: "http://127.0.0.1:1"}, options)
	if err != nil {
		t.Fatal(err)
	}
	return mgr
}

// The proof of the promise that stopping drains, and of the order in which a
// manager stops its groups, on which that rests: a reconciler is in the middle
// of its last run when the manager is stopped, records on to its last line, and
// everything arrives.
func TestAManagerThatStopsDeliversWhatReconcilersRecordedUpToTheirLastLine(t *testing.T) {
	ep := eventstest.NewEndpoint(eventstest.WithWindow(0))
	defer ep.Close()
	ep.Behave(eventstest.Delay(5 * time.Millisecond)) // the queue is not empty at the end
	mgr := newManager(t, ctrl.Options{})
	recorder, err := events.NewRecorder(mgr, logr.Discard(), ep.URL(), "stopping",
		events.WithMetricsRegisterer(prometheus.NewRegistry()))
	if err != nil {
		t.Fatal(err)
	}

	stopping, stop := context.WithCancel(context.Background())
	requests := make(chan event.GenericEvent, 1)
	requests <- event.GenericEvent{Object: pod("trigger")}
	record := func(from, to int) {
		for i := from; i < to; i++ {
			recorder.AnnotatedEventf(pod(fmt.Sprint("object", i%10)), map[string]string{"k": "v"}, "Normal", "Testing", "event %d", i)
		}
	}
	c, err := controller.New("stopping", mgr, controller.Options{
		SkipNameValidation: ptr(true),
		Reconciler: reconcile.Func(func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
			record(0, 100)
			stop()
			<-ctx.Done() // the manager has begun to stop the reconcilers
			// By the time that the first hundred are there, a drain that began
			// together with the stop of the reconcilers would take no more.
			if _, err := ep.Wait(context.Background(), 100); err != nil {
				return reconcile.Result{}, err
			}
			record(100, 200)
			return reconcile.Result{}, nil
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	trigger := handler.Funcs{GenericFunc: func(_ context.Context, _ event.GenericEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		q.Add(reconcile.Request{NamespacedName: types.NamespacedName{Name: "trigger"}})
	}}
	if err := c.Watch(source.Channel(requests, trigger)); err != nil {
		t.Fatal(err)
	}
	if err := mgr.Start(stopping); err != nil {
		t.Fatal(err)
	}
	if n := wantOrder(t, ep.Events()); n != 200 {
		t.Errorf("%d of 200 events were delivered when Start returned", n)
	}
}

func TestTheDrainOfAManagerEndsAtItsTimeout(t *testing.T) {
	ep := eventstest.NewEndpoint()
	defer ep.Close()
	ep.Behave(eventstest.Hang())
	mgr := newManager(t, ctrl.Options{})
	log := &logLines{}
	recorder, err := events.NewRecorder(mgr, logr.New(log), ep.URL(), "stuck",
		events.WithMetricsRegisterer(prometheus.NewRegistry()), events.WithDrainTimeout(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	recorder.Event(pod("a"), "Normal", "Testing", "m")
	ctx, stop := context.WithCancel(context.Background())
	stop()
	if err := mgr.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if lines := log.with(msgLost); len(lines) != 1 || lines[0].Keys["outcome"] != "shutdown" {
		t.Errorf("log: %v", lines)
	}
}

func TestAManagerWithoutEventsStopsAtOnce(t *testing.T) {
	mgr := newManager(t, ctrl.Options{})
	for i := range 3 { // several recorders of one manager, as with several controllers
		if _, err := events.NewRecorder(mgr, logr.Discard(), "http://127.0.0.1:1/", fmt.Sprint("idle", i),
			events.WithMetricsRegisterer(prometheus.NewRegistry()), events.WithDrainTimeout(time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	stop()
	if err := mgr.Start(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestNewRecorderWithoutAManagerOrWithAStoppedOneIsAnError(t *testing.T) {
	if _, err := events.NewRecorder(nil, logr.Discard(), "", "x"); err == nil || !strings.Contains(err.Error(), "manager") {
		t.Errorf("nil manager: %v", err)
	}
	mgr := newManager(t, ctrl.Options{})
	ctx, stop := context.WithCancel(context.Background())
	stop()
	if err := mgr.Start(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := events.NewRecorder(mgr, logr.Discard(), "http://host/", "x", events.WithMetricsRegisterer(prometheus.NewRegistry())); err == nil {
		t.Error("a recorder of a stopped manager would never be drained, but there was no error")
	}
	failing := failingManager{mgr}
	if _, err := events.NewRecorder(failing, logr.Discard(), "http://host/", "x", events.WithMetricsRegisterer(prometheus.NewRegistry())); !errors.Is(err, errAdd) {
		t.Errorf("error %v, want that of Add", err)
	}
}

var errAdd = errors.New("cannot add")

type failingManager struct{ manager.Manager }

func (failingManager) Add(manager.Runnable) error { return errAdd }

func ptr[T any](v T) *T { return &v }
