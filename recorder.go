package events

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

// EventRecorder records Kubernetes events through the recorder that it wraps
// and posts the same events to a notification endpoint from the background: a
// call never waits for the endpoint.
//
// It implements record.EventRecorder and record.EventRecorderLogger of
// k8s.io/client-go/tools/record. Make one with [NewRecorder] or
// [NewRecorderForScheme] and use it wherever a record.EventRecorder is wanted;
// most controllers call AnnotatedEventf. The package documentation says what
// happens to an event afterwards.
//
// No goroutine of a recorder exists while no event is pending, so one that is not
// needed any more can be dropped without Shutdown. [EventRecorder.Shutdown] is for
// delivering what is still pending; a recorder made by NewRecorder does that when
// its manager stops.
//
// All methods may be called concurrently, with nil objects, and on a nil or zero
// EventRecorder, which does nothing.
type EventRecorder struct {
	shared *shared
	kube   kubernetes // nil: no Kubernetes events
	log    logr.Logger
}

// Recorder is the name that GitOps-toolkit controllers use for an EventRecorder.
type Recorder = EventRecorder

var (
	_ record.EventRecorder       = (*EventRecorder)(nil)
	_ record.EventRecorderLogger = (*EventRecorder)(nil)
)

// shared is what all views of a recorder have in common.
type shared struct {
	scheme       *runtime.Scheme
	controller   string
	drainTimeout time.Duration
	delivery     *delivery // nil: no notification endpoint

	// Without an endpoint, only events about objects that cannot be read are lost.
	losses   lossLog
	finished atomic.Bool
}

// NewRecorder returns a recorder that wraps the manager's core/v1 event recorder
// (mgr.GetEventRecorderFor) or, with [WithCoreV1Recorder] or
// [WithEventsV1Recorder], another, and that is
// shut down by the manager after the reconcilers have stopped: what they
// recorded is delivered before mgr.Start returns, within the drain timeout (see
// [WithDrainTimeout]).
//
// endpoint is the URL of the notification endpoint; empty means Kubernetes events
// only. reportingController is the name of the controller, in both kinds of
// events and as the label of the metrics.
//
// It returns an error for a nil manager; for an endpoint that is not an absolute
// http or https URL and for bad options, all joined into one; and if the manager
// has already stopped.
//
// The manager keeps the recorder, and a goroutine that waits for it to stop, so
// make one for each controller, not for each event.
func NewRecorder(mgr ctrl.Manager, log logr.Logger, endpoint, reportingController string, opts ...Option) (*EventRecorder, error) {
	if isNil(mgr) {
		return nil, errors.New("events: NewRecorder: the manager must not be nil")
	}
	//lint:ignore SA1019 Deprecated, but core/v1 is the API that takes every message as it is.
	wrapped := mgr.GetEventRecorderFor(reportingController)
	r, err := NewRecorderForScheme(mgr.GetScheme(), wrapped, log, endpoint, reportingController, opts...)
	if err != nil {
		return nil, err
	}
	if r.shared.delivery != nil {
		if err := mgr.Add(drainOnStop{r}); err != nil {
			over, cancel := context.WithCancel(context.Background())
			cancel()
			_ = r.Shutdown(over) // lets go of the journal
			return nil, fmt.Errorf("events: NewRecorder: cannot add the drain to the manager: %w", err)
		}
	}
	return r, nil
}

// NewRecorderForScheme returns a recorder that wraps eventRecorder and knows the
// types of scheme. It belongs to no manager: call [EventRecorder.Shutdown] when
// the process ends. endpoint, reportingController and opts are those of
// [NewRecorder].
//
// A nil eventRecorder means no Kubernetes events. With a nil scheme only objects
// that carry their own kind and version can be recorded.
func NewRecorderForScheme(scheme *runtime.Scheme, eventRecorder record.EventRecorder, log logr.Logger, endpoint, reportingController string, opts ...Option) (*EventRecorder, error) {
	o, err := newOptions(opts)
	errs := []error{err}
	r := &EventRecorder{
		shared: &shared{scheme: scheme, controller: reportingController, drainTimeout: o.drainTimeout},
		log:    log.WithValues("controller", reportingController),
	}
	switch {
	case o.coreV1Set:
		r.kube = coreV1{o.coreV1}
	case !isNil(eventRecorder):
		r.kube = coreV1{eventRecorder}
	}
	if o.eventsV1Set {
		r.kube = eventsV1{o.eventsV1}
		errs = append(errs, checkReportingController(reportingController))
	}
	var u *url.URL
	if endpoint != "" {
		u, err = parseEndpoint(endpoint)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if u == nil {
		return r, nil
	}
	r.shared.delivery, err = newDelivery(o, u, reportingController, r.log)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// Event records an event about the object. The message is taken as it is: "%"
// has no meaning in it.
func (r *EventRecorder) Event(object runtime.Object, eventtype, reason, message string) {
	if r.idle() {
		return
	}
	r.record(object, nil, call{eventtype: eventtype, reason: reason, message: message})
}

// Eventf records an event about the object with the message
// fmt.Sprintf(messageFmt, args...).
func (r *EventRecorder) Eventf(object runtime.Object, eventtype, reason, messageFmt string, args ...any) {
	if r.idle() {
		return
	}
	r.record(object, nil, call{eventtype: eventtype, reason: reason, message: messageFmt, format: true, args: args})
}

// AnnotatedEventf is Eventf with annotations. They become annotations of the
// Kubernetes event and metadata of the payload, as do the object's own
// annotations whose key begins with "event.toolkit.fluxcd.io/"; where both have
// a key, the one given here counts. The map may be changed after the call.
//
// An event of type Warning is posted with severity error, one of type Trace is
// written to Kubernetes as Normal and not posted, and any other is posted with
// severity info.
func (r *EventRecorder) AnnotatedEventf(object runtime.Object, annotations map[string]string, eventtype, reason, messageFmt string, args ...any) {
	if r.idle() {
		return
	}
	r.record(object, nil, call{annotations: annotations, eventtype: eventtype, reason: reason,
		message: messageFmt, format: true, args: args})
}

// idle reports whether there is nothing to record to.
func (r *EventRecorder) idle() bool { return r == nil || r.shared == nil }

// record writes the Kubernetes event and queues its payload. It never waits for
// the endpoint.
func (r *EventRecorder) record(object, related runtime.Object, c call) {
	d := r.shared.delivery
	if c.eventtype == eventTypeTrace {
		d = nil
	}
	if c.eventtype != corev1.EventTypeWarning {
		c.eventtype = corev1.EventTypeNormal
	}

	var err error
	if c.regarding, c.ofObject, err = describe(r.shared.scheme, object); err != nil {
		r.invalid(d, fmt.Errorf("cannot make a reference to the object: %w", err),
			"type", fmt.Sprintf("%T", object), "reason", c.reason)
		return
	}
	if !isNil(related) {
		if c.related, _, err = describe(r.shared.scheme, related); err != nil {
			r.log.V(1).Info("Related object left out of the event", "kind", c.regarding.Kind,
				"namespace", c.regarding.Namespace, "name", c.regarding.Name, "reason", c.reason, "type", fmt.Sprintf("%T", related), "cause", err.Error())
		}
	}
	// The copy is made first: nobody can know what the wrapped recorder does
	// with a reference that it is given.
	var it *item
	if d != nil {
		it = newItem(&c)
	} else {
		c.metadata = c.merge(nil)
	}
	c.say()
	if log := r.log.V(2); log.Enabled() {
		log.Info("Event recorded", "kind", c.regarding.Kind, "namespace", c.regarding.Namespace, "name", c.regarding.Name,
			"type", c.eventtype, "reason", c.reason, "message", c.message, "annotations", asMap(c.metadata))
	}
	if r.kube != nil {
		r.kube.write(c, r.log)
	}
	switch {
	case d == nil:
	case it.involved.Kind == "" || it.involved.Name == "":
		r.invalid(d, errors.New("the reference to the object has no kind or no name"), it.logKeys()...)
	default:
		it.recorded = time.Now()
		d.enqueue(it)
	}
}

// invalid counts and logs an event that cannot be posted for what it is about.
// d is nil if it would not have been posted anyway.
func (r *EventRecorder) invalid(d *delivery, cause error, keysAndValues ...any) {
	if d == nil {
		r.shared.losses.lost(r.log, !r.shared.finished.Load(), invalid, 1, cause, keysAndValues...)
		return
	}
	d.counts.recorded.Add(1)
	d.counts.settle(invalid)
	d.logLoss(invalid, 1, cause, keysAndValues...)
}

// WithLogger returns the same recorder with another logger for what concerns
// single calls, and passes it to the wrapped recorder if that takes one. Lines
// about the delivery still go to the logger of the constructor.
func (r *EventRecorder) WithLogger(logger klog.Logger) record.EventRecorderLogger {
	return r.withLogger(logger)
}

func (r *EventRecorder) withLogger(logger klog.Logger) *EventRecorder {
	if r.idle() {
		return r
	}
	view := &EventRecorder{shared: r.shared, kube: r.kube, log: logger.WithValues("controller", r.shared.controller)}
	if r.kube != nil {
		view.kube = r.kube.withLogger(logger)
	}
	return view
}

// Flush waits until every event recorded before the call has an outcome: it is
// delivered, or lost and counted as such. Events recorded later do not prolong
// it. If ctx ends first, Flush returns an error that wraps ctx.Err() and says
// how many events are pending; a nil ctx never ends. It changes nothing: events
// are posted whether anyone waits or not. It must not be called by the logger, the
// HTTP client or the wrapped recorder, on whose return an event may depend.
func (r *EventRecorder) Flush(ctx context.Context) error {
	if r.idle() || r.shared.delivery == nil {
		return nil
	}
	return r.shared.delivery.flush(orBackground(ctx))
}

// Shutdown takes no more events for the endpoint and waits until those pending
// have an outcome. If ctx ends first, it cancels what is being posted, counts
// all that is left as shutdown, and returns an error that wraps ctx.Err() and
// says how many that were. It returns once no goroutine of the recorder is left;
// for a transport that ignores its context it waits a second longer than ctx. An
// HTTP/2 connection whose post was cancelled may stay idle for 20 s more.
//
// A nil ctx never ends. Shutdown may be called more than once and concurrently:
// the end of any caller's context ends the drain, and every caller gets the same
// result. Later events still reach Kubernetes; for the endpoint they are counted
// as shutdown. Like Flush, it must not be called by what the recorder itself calls.
func (r *EventRecorder) Shutdown(ctx context.Context) error {
	if r.idle() {
		return nil
	}
	r.shared.finished.Store(true)
	defer r.shared.losses.flush()
	if r.shared.delivery == nil {
		return nil
	}
	return r.shared.delivery.shutdown(orBackground(ctx))
}

func orBackground(ctx context.Context) context.Context {
	if ctx == nil {
		return context.Background()
	}
	return ctx
}
