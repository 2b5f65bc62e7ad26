package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	peer "github.com/fluxcd/pkg/runtime/events"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/eventrecorder/events"
)

// The events that are lost when a manager stops: a reconciler records a hundred
// events about ten objects; when half of them are taken, the manager is told to
// stop; and before its last run ends, the reconciler records a hundred more. What
// the endpoint, which is as far away as the latency says, has not taken when
// mgr.Start returns is lost: then main returns too.

const (
	shutdownEvents  = 200
	shutdownObjects = 10
)

// measureShutdown fills the row about a manager that stops.
func measureShutdown(r *report, s scale) error {
	row := r.row(fmt.Sprintf("%d events when a manager stops, endpoint %v away: lost", shutdownEvents, s.latency))
	losses, times := make(map[column][]int), make(map[column][]time.Duration)
	for range s.runs() {
		for _, c := range []column{ours, fluxPeer, goroutine} {
			lost, took, err := stopManager(c, s.latency)
			if err != nil {
				return fmt.Errorf("%v: %w", c, err)
			}
			losses[c], times[c] = append(losses[c], lost), append(times[c], took)
		}
	}
	for c := range losses {
		row.set(c, "%s (the stop takes %s)", none(median(losses[c])), duration(median(times[c])))
	}
	most := slices.Max(losses[ours])
	r.goal(most == 0, "nothing lost when a manager stops, in any run", "%s of %d", none(most), shutdownEvents)
	return nil
}

// stopManager runs and stops a manager, and returns how many events were lost
// and how long it took from the stop to the end.
func stopManager(c column, latency time.Duration) (lost int, took time.Duration, err error) {
	var taken atomic.Int64
	halfway := make(chan struct{})
	ep, err := serve(func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		time.Sleep(latency) // on the way here
		if taken.Add(1) == shutdownEvents/4 {
			close(halfway)
		}
		w.WriteHeader(http.StatusAccepted)
	})
	if err != nil {
		return 0, 0, err
	}
	defer ep.close()

	mgr, err := newManager()
	if err != nil {
		return 0, 0, err
	}
	r, err := managedRecorder(c, mgr, ep.url)
	if err != nil {
		return 0, 0, err
	}
	defer r.stop()

	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	reconcile := func(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
		recordAll(r, shutdownObjects, shutdownEvents/2)
		<-ctx.Done()
		recordAll(r, shutdownObjects, shutdownEvents/2)
		return ctrl.Result{}, nil
	}
	if err := addController(mgr, reconcile); err != nil {
		return 0, 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	select {
	case <-halfway:
	case err := <-ended:
		return 0, 0, fmt.Errorf("the manager did not run: %w", err)
	}
	began := time.Now()
	stop()
	err = <-ended
	return shutdownEvents - int(taken.Load()), time.Since(began), err
}

// managedRecorder returns a recorder as a main would make it.
func managedRecorder(c column, mgr ctrl.Manager, url string) (recorder, error) {
	switch c {
	case ours:
		r, err := events.NewRecorder(mgr, silent(), url, controllerName, events.WithMetricsRegisterer(prometheus.NewRegistry()))
		return ourRecorder{EventRecorder: r}, err
	case fluxPeer:
		r, err := peer.NewRecorder(silent(), url, controllerName, peer.WithManager(mgr))
		return peerRecorder{r}, err
	default:
		//lint:ignore SA1019 Deprecated, but it is what the others use, too.
		return newGoroutines(url, mgr.GetEventRecorderFor(controllerName)), nil
	}
}

// newManager returns a manager that needs no API server, as long as nobody asks
// for objects.
func newManager() (ctrl.Manager, error) {
	return ctrl.NewManager(&rest.Config{Host: "http://127.0.0.1:1"}, ctrl.Options{
		Scheme:  scheme.Scheme,
		Logger:  silent(),
		Metrics: metricsserver.Options{BindAddress: "0"},
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) {
			return meta.NewDefaultRESTMapper(nil), nil
		},
	})
}

// addController adds a controller that reconciles one object once.
func addController(mgr ctrl.Manager, reconcile func(context.Context, ctrl.Request) (ctrl.Result, error)) error {
	again := true // there is one in each run of this program for each recorder
	c, err := controller.New(controllerName, mgr, controller.Options{
		Reconciler:         reconcileFunc(reconcile),
		SkipNameValidation: &again,
	})
	if err != nil {
		return err
	}
	changes := make(chan event.TypedGenericEvent[*corev1.Pod], 1)
	changes <- event.TypedGenericEvent[*corev1.Pod]{Object: pod("podinfo")}
	return c.Watch(source.Channel(changes, &handler.TypedEnqueueRequestForObject[*corev1.Pod]{}))
}

type reconcileFunc func(context.Context, ctrl.Request) (ctrl.Result, error)

func (f reconcileFunc) Reconcile(ctx context.Context, r ctrl.Request) (ctrl.Result, error) {
	return f(ctx, r)
}
