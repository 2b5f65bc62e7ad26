package story

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// namespace is where the objects are that are in no cluster.
const namespace = "default"

// Maker makes the recorder of a telling, which must post to url with the client.
type Maker func(url string, client *http.Client) (record.EventRecorder, error)

// Play tells the story once, with a controller of controller-runtime, but with
// objects in memory. It returns when B is ready and the recorder, if it has a
// Shutdown, has delivered what was recorded; or with an error, when ctx is done
// before that.
func Play(ctx context.Context, plan Plan, ep Endpoint, makeRecorder Maker) (*Timeline, error) {
	timeline := NewTimeline()
	recorder, err := makeRecorder(ep.URL(), Trouble(ep, plan, timeline))
	if err != nil {
		return nil, err
	}
	objects := fake.NewClientBuilder().Build()
	changes, err := objects.Watch(ctx, &corev1.ConfigMapList{})
	if err != nil {
		return nil, err
	}
	defer changes.Stop()
	controller, err := newController(changes, &Reconciler{
		Client:   objects,
		Recorder: timeline.Recorder(recorder),
		Plan:     plan,
		Timeline: timeline,
	})
	if err != nil {
		return nil, err
	}

	// B comes first only because creating the first object takes the client
	// much longer. Nothing sees either before the controller starts.
	if err := objects.Create(ctx, B(namespace)); err != nil {
		return nil, err
	}
	timeline.Begin()
	if err := objects.Create(ctx, A(namespace, time.Now().Add(plan.AReady))); err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	stopped := make(chan error, 1)
	go func() { stopped <- controller.Start(running) }()
	err = timeline.WaitReady(ctx, NameB)

	// The recorder is shut down after the reconcilers, as by a manager: they
	// record until they end.
	stop()
	err = errors.Join(err, <-stopped)
	if r, ok := recorder.(interface{ Shutdown(context.Context) error }); ok {
		err = errors.Join(err, r.Shutdown(ctx))
	}
	return timeline, err
}

// newController returns a controller that needs no manager: it hears of changes
// from the watch.
func newController(changes watch.Interface, r *Reconciler) (controller.Controller, error) {
	o := options()
	// The priority queue, the default since v0.23, may leave a goroutine behind
	// that wants to hand out an item when no worker is left. In virtual time
	// that is fatal.
	o.UsePriorityQueue = new(bool)
	o.Reconciler = r
	o.Logger = logr.Discard()
	c, err := controller.NewUnmanaged(controllerName, o)
	if err != nil {
		return nil, err
	}
	return c, c.Watch(source.Func(func(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		go func() {
			for {
				select {
				case change, open := <-changes.ResultChan():
					if !open {
						return
					}
					if object, ok := change.Object.(client.Object); ok {
						queue.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(object)})
					}
				case <-ctx.Done():
					return
				}
			}
		}()
		return nil
	}))
}
