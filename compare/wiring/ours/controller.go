// Package wiring is what a controller's main and its reconciler have to do with
// events. It exists twice: the copies differ in the import path of the recorder
// and in nothing else, which a test of the module sees to.
package wiring

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/eventrecorder/events"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	kuberecorder "k8s.io/client-go/tools/record"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const controllerName = "wiring-controller"

// recorder is as in a main that has its recorder in a variable of the package.
var recorder *events.Recorder

var _ kuberecorder.EventRecorder = recorder

// Reconciler has the recorder embedded, as an interface.
type Reconciler struct {
	client.Client
	kuberecorder.EventRecorder

	ControllerName string
}

// Notifier has the recorder in a field of its own type.
type Notifier struct {
	Recorder *events.Recorder
}

// options has it in a field that is an interface, as options of a reconciler do.
type options struct {
	EventRecorder kuberecorder.EventRecorder
	EventsAddr    string
}

// BindFlags reads the address of the endpoint.
func (o *options) BindFlags(fs *flag.FlagSet) {
	fs.StringVar(&o.EventsAddr, "events-addr", "", "The address of the events receiver.")
}

// Setup wires a manager, in the way of a main.
func Setup(mgr ctrl.Manager, args ...string) (*Reconciler, error) {
	var opts options
	fs := flag.NewFlagSet(controllerName, flag.ContinueOnError)
	opts.BindFlags(fs)
	if err := fs.Parse(args); err != nil {
		return nil, err
	}

	var eventRecorder *events.Recorder
	var err error
	if eventRecorder, err = events.NewRecorder(mgr, ctrl.Log, opts.EventsAddr, controllerName); err != nil {
		return nil, fmt.Errorf("unable to create event recorder: %w", err)
	}
	recorder = eventRecorder
	opts.EventRecorder = eventRecorder
	return &Reconciler{Client: mgr.GetClient(), EventRecorder: opts.EventRecorder, ControllerName: controllerName}, nil
}

// MustSetup is the same for a main that ends the process.
func MustSetup(mgr ctrl.Manager, eventsAddr string) *Notifier {
	r, err := events.NewRecorder(mgr, ctrl.Log, eventsAddr, controllerName)
	if err != nil {
		ctrl.Log.Error(err, "unable to create event recorder")
		os.Exit(1)
	}
	return &Notifier{Recorder: r}
}

// ForScheme is the wiring of tests, and of processes without a manager.
func ForScheme(scheme *runtime.Scheme, fake *kuberecorder.FakeRecorder, log logr.Logger, eventsAddr string) (*Notifier, error) {
	r, err := events.NewRecorderForScheme(scheme, fake, log, eventsAddr, controllerName)
	return &Notifier{Recorder: r}, err
}

// newRecorder has the constructor in a variable, as those who replace it do.
var newRecorder func(ctrl.Manager, logr.Logger, string, string) (*events.Recorder, error) = func(
	mgr ctrl.Manager, log logr.Logger, webhook, reportingController string) (*events.Recorder, error) {
	return events.NewRecorder(mgr, log, webhook, reportingController)
}

// Again is Setup through that variable.
func Again(mgr ctrl.Manager, eventsAddr string) (*Notifier, error) {
	r, err := newRecorder(mgr, ctrl.Log, eventsAddr, controllerName)
	return &Notifier{Recorder: r}, err
}

// Reconcile records as reconcilers do, through the interface.
func (r *Reconciler) Reconcile(_ context.Context, object client.Object) {
	report(r, object)
}

// Reconcile records through the recorder's own type.
func (n *Notifier) Reconcile(_ context.Context, object client.Object) {
	report(n.Recorder, object)
}

func report(r kuberecorder.EventRecorder, object runtime.Object) {
	r.Event(object, corev1.EventTypeNormal, "Progressing", "50% done")
	r.Eventf(object, corev1.EventTypeWarning, "HealthCheckFailed", "timeout after %ds waiting for %q", 30, "Deployment/apps/podinfo")
	r.AnnotatedEventf(object, map[string]string{"kustomize.toolkit.fluxcd.io/revision": "main@sha1:3b2a1c"},
		corev1.EventTypeNormal, "ReconciliationSucceeded", "Größe <b> & \"quotes\": finished in %s", "2s")
	r.AnnotatedEventf(object, nil, "Trace", "Traced", "only Kubernetes shall see this")
	r.AnnotatedEventf(object, nil, corev1.EventTypeNormal, "", "")
}
