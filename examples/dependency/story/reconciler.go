package story

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// The annotations of the ConfigMaps in the story. Others are left alone.
const (
	// AnnotationDependsOn names the ConfigMap, in the same namespace, that
	// must be ready first.
	AnnotationDependsOn = "depends-on"

	// AnnotationHealthyAt is when a ConfigMap that depends on nothing becomes
	// ready, in RFC 3339. It stands for a health check that passes then.
	AnnotationHealthyAt = "healthy-at"

	// AnnotationReady is "true" once a ConfigMap is ready.
	AnnotationReady = "ready"
)

// The names of the two objects.
const (
	NameA = "a"
	NameB = "b"
)

// The reasons of the two events.
const (
	ReasonNotReady  = "DependencyNotReady"
	ReasonSucceeded = "ReconciliationSucceeded"
)

// workers is how many objects are reconciled at a time. There is one for each,
// so what keeps B waiting is its own worker and not that A's is busy.
const workers = 2

const controllerName = "dependency"

// A returns the object that becomes ready by itself.
func A(namespace string, healthyAt time.Time) *corev1.ConfigMap {
	return object(namespace, NameA, AnnotationHealthyAt, healthyAt.Format(time.RFC3339Nano))
}

// B returns the object that depends on A.
func B(namespace string) *corev1.ConfigMap {
	return object(namespace, NameB, AnnotationDependsOn, NameA)
}

func object(namespace, name, annotation, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace:   namespace,
		Name:        name,
		Annotations: map[string]string{annotation: value},
	}}
}

// Reconciler makes ConfigMaps ready: one that depends on another when that is
// ready, any other when its time has come. It records events on the way, as
// controllers do, in the middle of Reconcile.
type Reconciler struct {
	Client   client.Client
	Recorder record.EventRecorder
	Plan     Plan
	Timeline *Timeline // nil: nobody wants to know
}

var _ reconcile.Reconciler = (*Reconciler)(nil)

// Reconcile implements reconcile.Reconciler.
func (r *Reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	obj := &corev1.ConfigMap{}
	if err := r.Client.Get(ctx, req.NamespacedName, obj); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if isReady(obj) {
		return reconcile.Result{}, nil
	}
	dependsOn, healthyAt := obj.Annotations[AnnotationDependsOn], obj.Annotations[AnnotationHealthyAt]
	switch {
	case dependsOn != "":
		dependency := &corev1.ConfigMap{}
		err := r.Client.Get(ctx, client.ObjectKey{Namespace: req.Namespace, Name: dependsOn}, dependency)
		if client.IgnoreNotFound(err) != nil {
			return reconcile.Result{}, err
		}
		if !isReady(dependency) {
			r.Recorder.Eventf(obj, corev1.EventTypeNormal, ReasonNotReady,
				"Dependencies do not meet ready condition, retrying in %s", r.Plan.RetryInterval)
			return reconcile.Result{RequeueAfter: r.Plan.RetryInterval}, nil
		}
	case healthyAt != "":
		at, err := time.Parse(time.RFC3339, healthyAt)
		if err != nil {
			return reconcile.Result{}, reconcile.TerminalError(fmt.Errorf("annotation %s: %w", AnnotationHealthyAt, err))
		}
		if wait := time.Until(at); wait > 0 {
			return reconcile.Result{RequeueAfter: wait}, nil
		}
	default:
		return reconcile.Result{}, nil
	}

	before := obj.DeepCopy()
	obj.Annotations[AnnotationReady] = "true"
	if err := r.Client.Patch(ctx, obj, client.MergeFrom(before)); err != nil {
		return reconcile.Result{}, err
	}
	r.Timeline.ready(obj.Name)
	r.Recorder.Event(obj, corev1.EventTypeNormal, ReasonSucceeded, "Reconciliation finished")
	return reconcile.Result{}, nil
}

func isReady(obj *corev1.ConfigMap) bool { return obj.Annotations[AnnotationReady] == "true" }

// SetupWithManager adds the reconciler to a manager, with a worker for each of
// the two objects.
func (r *Reconciler) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		For(&corev1.ConfigMap{}).
		Named(controllerName).
		WithOptions(options()).
		Complete(r)
}

// options allows more than one controller of the name in a process: the story
// is told twice there.
func options() controller.Options {
	skip := true
	return controller.Options{MaxConcurrentReconciles: workers, SkipNameValidation: &skip}
}
