package events

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/go-logr/logr"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	kubeevents "k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
)

// Limits of the API server for events of events.k8s.io, in bytes
// (k8s.io/kubernetes/pkg/apis/core/validation/events.go).
const (
	maxNoteBytes              = 1024
	maxReasonBytes            = 128
	maxActionBytes            = 128
	maxReportingInstanceBytes = 128
)

// EventsV1Recorder is the view of an [EventRecorder] that has the methods of
// the events.k8s.io API: a related object and an action. It shares the queue,
// the order, the limits and the shutdown of its EventRecorder, so a controller
// may use both at once while it moves from one API to the other.
//
// It implements events.EventRecorder and events.EventRecorderLogger of
// k8s.io/client-go/tools/events, from client-go v0.37 also its
// AnnotatedEventRecorder, and with that the recorder that controller-runtime
// v0.25 asks for.
//
// The related object and the action are always in the payload; in the
// Kubernetes event they are where the API has a place for them. What
// events.k8s.io would refuse, or store as it should not be, is mended in the
// Kubernetes event, never in the payload: an empty action becomes the reason; an
// empty reason becomes the action, or Unknown; a note of more than 1,024 bytes, a
// reason or action of more than 128 is cut and ends in "…"; invalid UTF-8 becomes
// U+FFFD; annotations whose key is no qualified name, or that are more than 256 KiB
// in all, are left out. What is mended is logged at verbosity 1.
//
// All methods may be called concurrently, and on nil, which does nothing.
type EventsV1Recorder struct{ r *EventRecorder }

var (
	_ kubeevents.EventRecorder       = (*EventsV1Recorder)(nil)
	_ kubeevents.EventRecorderLogger = (*EventsV1Recorder)(nil)
)

// EventsV1 returns the events.k8s.io view of the recorder. It costs one small
// allocation.
func (r *EventRecorder) EventsV1() *EventsV1Recorder { return &EventsV1Recorder{r} }

// Eventf records an event about regarding, with the message
// fmt.Sprintf(note, args...). related may be nil. Mind the order: unlike in
// (*EventRecorder).Eventf, related comes before eventtype and action before note.
func (v *EventsV1Recorder) Eventf(regarding, related runtime.Object, eventtype, reason, action, note string, args ...any) {
	v.AnnotatedEventf(regarding, related, nil, eventtype, reason, action, note, args...)
}

// AnnotatedEventf is Eventf with annotations, which travel in the metadata of
// the payload, and in the Kubernetes event if its recorder can carry them.
func (v *EventsV1Recorder) AnnotatedEventf(regarding, related runtime.Object, annotations map[string]string, eventtype, reason, action, note string, args ...any) {
	if v == nil || v.r.idle() {
		return
	}
	v.r.record(regarding, related, call{annotations: annotations, eventtype: eventtype, reason: reason, action: action,
		message: note, format: true, args: args})
}

// WithLogger returns the same view with another logger for what concerns
// single calls, and passes it to the Kubernetes recorder if that takes one.
func (v *EventsV1Recorder) WithLogger(logger klog.Logger) kubeevents.EventRecorderLogger {
	if v == nil {
		return v
	}
	return v.r.withLogger(logger).EventsV1()
}

// kubernetes writes an event to the Kubernetes API, through whichever recorder
// the controller has.
type kubernetes interface {
	write(c call, log logr.Logger)
	withLogger(klog.Logger) kubernetes
}

// coreV1 writes to core/v1. That API has neither a related object nor an
// action, and takes messages as they are.
type coreV1 struct{ recorder record.EventRecorder }

func (k coreV1) write(c call, log logr.Logger) {
	mended := c
	mended.annotations = mendAnnotations(c.metadata)
	c.logChanged(mended, "core/v1", log)
	if len(mended.annotations) == 0 {
		k.recorder.Event(c.regarding, c.eventtype, c.reason, c.message)
		return
	}
	format, args := verbatim(c.message)
	k.recorder.AnnotatedEventf(c.regarding, mended.annotations, c.eventtype, c.reason, format, args...)
}

// verbatim returns the arguments with which Sprintf returns the message. Nearly
// always that is the message itself, which saves two allocations.
func verbatim(message string) (format string, args []any) {
	if strings.Contains(message, "%") {
		return "%s", []any{message}
	}
	return message, nil
}

func (k coreV1) withLogger(log klog.Logger) kubernetes {
	if r, ok := k.recorder.(record.EventRecorderLogger); ok {
		return coreV1{r.WithLogger(log)}
	}
	return k
}

// eventsV1 writes to events.k8s.io.
type eventsV1 struct{ recorder kubeevents.EventRecorder }

// annotatedEventsV1 is client-go's events.AnnotatedEventRecorder, which older
// versions do not have.
type annotatedEventsV1 interface {
	AnnotatedEventf(regarding, related runtime.Object, annotations map[string]string, eventtype, reason, action, note string, args ...any)
}

func (k eventsV1) write(c call, log logr.Logger) {
	mended := c.mend()
	c.logChanged(mended, "events.k8s.io", log)
	var related runtime.Object // not a typed nil
	if mended.related != nil {
		related = mended.related
	}
	format, args := verbatim(mended.message)
	if r, ok := k.recorder.(annotatedEventsV1); ok && len(mended.annotations) > 0 {
		r.AnnotatedEventf(mended.regarding, related, mended.annotations,
			mended.eventtype, mended.reason, mended.action, format, args...)
		return
	}
	k.recorder.Eventf(mended.regarding, related, mended.eventtype, mended.reason, mended.action, format, args...)
}

func (k eventsV1) withLogger(log klog.Logger) kubernetes {
	if r, ok := k.recorder.(kubeevents.EventRecorderLogger); ok {
		return eventsV1{r.WithLogger(log)}
	}
	return k
}

// mend returns the event as events.k8s.io takes it.
func (c call) mend() call {
	if c.reason == "" {
		c.reason = c.action
	}
	if c.reason == "" {
		c.reason = "Unknown"
	}
	if c.action == "" {
		c.action = c.reason
	}
	c.reason = cutBytes(c.reason, maxReasonBytes)
	c.action = cutBytes(c.action, maxActionBytes)
	c.message = cutBytes(c.message, maxNoteBytes)
	c.annotations = mendAnnotations(c.metadata)
	return c
}

// mendAnnotations leaves out what would make the API server refuse the whole event,
// in either API: keys that are no qualified names, and what is too much in all,
// the last keys first.
func mendAnnotations(annotations []annotation) map[string]string {
	mended := asMap(annotations)
	size := 0
	for _, a := range annotations {
		if n := len(a.key) + len(a.value); isAnnotationKey(a.key) && size+n <= apivalidation.TotalAnnotationSizeLimitB {
			size += n
		} else {
			delete(mended, a.key)
		}
	}
	return mended
}

// asMap returns the annotations in a map that the wrapped recorder, or a logger, may
// keep.
func asMap(annotations []annotation) map[string]string {
	if len(annotations) == 0 {
		return nil
	}
	m := make(map[string]string, len(annotations))
	for _, a := range annotations {
		m[a.key] = a.value
	}
	return m
}

// isAnnotationKey applies the API server's rule. Its regular expressions take
// longer than all the rest of a recording, so usual keys are told without them.
func isAnnotationKey(key string) bool {
	usual := len(key) > 0 && len(key) <= 63
	slashes := 0
	for i := 0; i < len(key) && usual; i++ {
		switch c := key[i]; {
		case 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9':
		default:
			// Where a part begins or ends, only letters and digits may stand.
			usual = i > 0 && i < len(key)-1 && isAlphanumeric(key[i-1]) && (c == '.' || c == '-' || c == '/' && slashes == 0)
			if c == '/' {
				slashes++
			}
		}
	}
	return usual || len(validation.IsQualifiedName(strings.ToLower(key))) == 0
}

func isAlphanumeric(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
}

// logChanged says what was mended, but for an action that was not given: every
// core-style call has none.
func (c call) logChanged(mended call, api string, log logr.Logger) {
	log = log.V(1)
	if !log.Enabled() {
		return
	}
	var changed []string
	for _, field := range []struct{ name, before, after string }{
		{"reason", c.reason, mended.reason},
		{"action", c.action, mended.action},
		{"note", c.message, mended.message},
	} {
		if field.before != field.after && (field.name != "action" || field.before != "") {
			changed = append(changed, field.name)
		}
	}
	if len(mended.annotations) != len(c.metadata) {
		changed = append(changed, "annotations")
	}
	if len(changed) > 0 {
		log.Info("Kubernetes event changed to what the API takes", "api", api,
			"kind", c.regarding.Kind, "namespace", c.regarding.Namespace, "name", c.regarding.Name, "reason", c.reason,
			"changed", changed)
	}
}

// cutBytes returns s as valid UTF-8 of at most limit bytes, which is how the
// API server measures it. It cuts between characters and leaves a mark.
func cutBytes(s string, limit int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= limit {
		return s
	}
	const mark = "…"
	cut := limit - len(mark)
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + mark
}

// checkReportingController applies the API server's rules for the reporting
// controller and the reporting instance, which client-go makes of the name, a
// hyphen and the host name.
func checkReportingController(name string) error {
	if faults := validation.IsQualifiedName(name); len(faults) > 0 {
		return fmt.Errorf("events: reporting controller %q: events.k8s.io takes only a qualified name: %s",
			name, strings.Join(faults, "; "))
	}
	if n := len(name) + len("-") + len(hostname()); n > maxReportingInstanceBytes {
		return fmt.Errorf("events: reporting controller %q: %d bytes with a hyphen and the host name, events.k8s.io takes at most %d",
			name, n, maxReportingInstanceBytes)
	}
	return nil
}
