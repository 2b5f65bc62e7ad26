package events_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
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
	if lines := log.with(msgStopped); len(lines) != 1 || lines[0].Keys["pending"] != 1 {
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

// lock is a lease in memory that can be lost.
type lock struct {
	mu     sync.Mutex
	record *resourcelock.LeaderElectionRecord
	lost   bool
}

var errLease = errors.New("the API server is away")

func (l *lock) access(change *resourcelock.LeaderElectionRecord) (*resourcelock.LeaderElectionRecord, []byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost {
		return nil, nil, errLease
	}
	if change != nil {
		copied := *change
		l.record = &copied
	}
	if l.record == nil {
		return nil, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "leases"}, "lease")
	}
	copied := *l.record
	raw, err := json.Marshal(copied)
	return &copied, raw, err
}

func (l *lock) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	return l.access(nil)
}

func (l *lock) Create(_ context.Context, r resourcelock.LeaderElectionRecord) error {
	_, _, err := l.access(&r)
	return err
}

func (l *lock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return l.Create(ctx, r)
}

func (l *lock) lose() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = true
}

func (*lock) RecordEvent(string) {}
func (*lock) Identity() string   { return "this one" }
func (*lock) Describe() string   { return "a lease in memory" }

// A manager that loses its lease waits for nobody. What is pending is delivered by
// the Shutdown that main calls then, and the log says how much that was.
func TestAManagerThatLosesItsLeaseLeavesTheRestToAShutdown(t *testing.T) {
	ep := eventstest.NewEndpoint(eventstest.WithWindow(0))
	defer ep.Close()
	lease := &lock{}
	mgr := newManager(t, ctrl.Options{LeaderElection: true, LeaderElectionResourceLockInterface: lease,
		LeaseDuration: ptr(600 * time.Millisecond), RenewDeadline: ptr(300 * time.Millisecond), RetryPeriod: ptr(50 * time.Millisecond)})
	log := &logLines{}
	recorder, err := events.NewRecorder(mgr, logr.New(log), ep.URL(), "leading", fast,
		events.WithMetricsRegisterer(prometheus.NewRegistry()), events.WithDrainTimeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(t.Context()) }()
	<-mgr.Elected()

	proceed := make(chan struct{})
	ep.Behave(func(w http.ResponseWriter, r *http.Request, normal http.Handler) {
		<-proceed
		normal.ServeHTTP(w, r)
	})
	for i := range 10 {
		recorder.Event(pod("a"), "Normal", "Testing", fmt.Sprint("event ", i))
	}
	lease.lose()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "leader election lost") {
		t.Errorf("Start returned %v", err)
	}
	if n := len(ep.Events()); n != 0 {
		t.Errorf("%d events were delivered by then: this test shows nothing", n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for ctx.Err() == nil && len(log.with(msgStopped)) == 0 {
		runtime.Gosched() // the manager's own drain begins at about this time
	}
	if got := log.with(msgStopped); len(got) != 1 || got[0].Keys["pending"] != 10 || got[0].Level != 0 {
		t.Errorf("log: %v", got)
	}
	close(proceed)
	if err := recorder.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	if n := wantOrder(t, ep.Events()); n != 10 {
		t.Errorf("%d of 10 events were delivered", n)
	}
}

func TestAManagerThatStopsWithNothingPendingSaysNothing(t *testing.T) {
	mgr := newManager(t, ctrl.Options{})
	log := &logLines{}
	if _, err := events.NewRecorder(mgr, logr.New(log), "http://127.0.0.1:1/", "idle", events.WithMetricsRegisterer(prometheus.NewRegistry())); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	stop()
	if err := mgr.Start(ctx); err != nil || len(log.lines) != 0 {
		t.Errorf("error %v, log: %v", err, log.lines)
	}
}
