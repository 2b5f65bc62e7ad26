package events

import (
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/reference"
)

// Event is the JSON body that is posted to the notification endpoint. For the
// same values it marshals to the same bytes as the event type of Flux's
// notification-controller (github.com/fluxcd/pkg/apis/event), so an endpoint
// written for one reads the other.
//
// An Event is a plain value. It is safe for concurrent use as long as nobody
// changes it.
type Event struct {
	// InvolvedObject is the object that the event is about. Its namespace is
	// empty for a cluster-scoped object.
	InvolvedObject corev1.ObjectReference `json:"involvedObject"`

	// RelatedObject is a second object that the event is about. It is set only
	// by the events.k8s.io view, and left out when there is none.
	RelatedObject *corev1.ObjectReference `json:"relatedObject,omitempty"`

	// Severity is "error" for an event of type Warning and "info" for any other.
	Severity string `json:"severity"`

	// Timestamp is when the event was recorded, with a resolution of one
	// second. For events that were coalesced it is the time of the last.
	Timestamp metav1.Time `json:"timestamp"`

	// Message is the text of the event: at most 39,000 characters, the limit
	// that notification-controller documents. A longer one ends in "… (truncated)".
	Message string `json:"message"`

	// Reason is the machine-readable reason, as the controller gave it.
	Reason string `json:"reason"`

	// Action says what was done to the object. It is set only by the
	// events.k8s.io view, and left out when it is empty.
	Action string `json:"action,omitempty"`

	// Metadata holds the annotations of the event and those of the object
	// whose key begins with "event.toolkit.fluxcd.io/".
	Metadata map[string]string `json:"metadata,omitempty"`

	// ReportingController is the name given to the constructor.
	ReportingController string `json:"reportingController"`

	// ReportingInstance is the name of the host, or empty if it is not known.
	ReportingInstance string `json:"reportingInstance,omitempty"`
}

const (
	severityInfo  = "info"
	severityError = "error"

	// eventTypeTrace is the event type that GitOps-toolkit controllers use for
	// events that only Kubernetes shall see.
	eventTypeTrace = "Trace"

	// objectAnnotationPrefix selects the annotations of an object that travel
	// with every event about it.
	objectAnnotationPrefix = "event.toolkit.fluxcd.io/"

	// maxMessageRunes is documented on the Message field of
	// notification-controller's event type ("Maximum length 39,000 characters").
	maxMessageRunes = 39000

	truncationMark = "… (truncated)"
)

// annotation is one entry of an event's metadata.
type annotation struct{ key, value string }

// call is an event as a controller records it, with references for its objects.
// Its maps and references may be anybody's: they are not changed.
type call struct {
	regarding, related                 *corev1.ObjectReference // related may be nil
	annotations, ofObject              map[string]string       // what the controller gave, and the object's own
	metadata                           []annotation            // both together, see merge
	eventtype, reason, action, message string

	// While format is true, message is that of fmt.Sprintf(message, args...).
	format bool
	args   []any
}

// say formats the message.
func (c *call) say() {
	if c.format {
		c.message, c.format, c.args = fmt.Sprintf(c.message, c.args...), false, nil
	}
}

// scratch holds buffers in which the strings of an event are put together.
var scratch = sync.Pool{New: func() any { return new([]byte) }}

// maxScratch is the largest buffer that is kept.
const maxScratch = 64 << 10

// notification is an event as it waits in the queue: what the caller gave, in
// memory that nobody else holds. All its strings are cut from one allocation,
// so that neither the caller's later changes nor a large string that a short one
// was cut from live on in it. It never changes.
type notification struct {
	involved corev1.ObjectReference
	related  *corev1.ObjectReference
	warning  bool
	reason   string
	action   string
	message  string
	metadata []annotation // sorted by key
	recorded time.Time
	bytes    int           // of memory, about
	few      [2]annotation // where metadata is, if it fits
}

// newItem copies an event, and formats its message on the way. When it was recorded
// is for the caller to say.
func newItem(c *call) *item {
	it := &item{notification: notification{
		involved: *c.regarding,
		warning:  c.eventtype == corev1.EventTypeWarning,
		reason:   c.reason,
		action:   c.action,
	}}
	it.bytes = int(unsafe.Sizeof(*it))
	if c.related != nil {
		related := *c.related
		it.related = &related
		it.bytes += int(unsafe.Sizeof(related))
	}
	it.metadata = c.merge(it.few[:0])
	if cap(it.metadata) > len(it.few) {
		it.bytes += cap(it.metadata) * int(unsafe.Sizeof(annotation{}))
	}

	buffer := scratch.Get().(*[]byte)
	b := (*buffer)[:0]
	if c.format {
		b = fmt.Appendf(b, c.message, c.args...)
		c.format, c.args = false, nil
	} else {
		b = append(b, c.message...)
	}
	// The message comes first, so its end is known before its place is.
	length := len(b)
	if length > maxMessageRunes {
		c.message = string(b)
		b = append(b[:0], truncateRunes(c.message, maxMessageRunes)...)
	}
	end := len(b)
	all := it.strings(make([]*string, 0, 24))
	for _, s := range all {
		b = append(b, *s...)
	}
	text := string(b)
	if *buffer = b; cap(b) > maxScratch {
		*buffer = nil
	}
	scratch.Put(buffer)

	it.message = text[:end]
	if length <= maxMessageRunes {
		c.message = it.message
	}
	rest := text[end:]
	for _, s := range all {
		*s, rest = rest[:len(*s)], rest[len(*s):]
	}
	c.metadata = it.metadata
	// The allocator's size classes are an eighth apart: half of that is lost.
	it.bytes += len(text) + len(text)/16
	return it
}

// strings appends all strings of the notification but the message.
func (n *notification) strings(to []*string) []*string {
	to = referenceStrings(to, &n.involved)
	if n.related != nil {
		to = referenceStrings(to, n.related)
	}
	to = append(to, &n.reason, &n.action)
	for i := range n.metadata {
		to = append(to, &n.metadata[i].key, &n.metadata[i].value)
	}
	return to
}

func referenceStrings(to []*string, ref *corev1.ObjectReference) []*string {
	return append(to, &ref.Kind, &ref.Namespace, &ref.Name, (*string)(&ref.UID), &ref.APIVersion, &ref.ResourceVersion, &ref.FieldPath)
}

// laneKey is the key of the lane that keeps the events of one object in order.
func (n *notification) laneKey() laneKey {
	gv, _ := schema.ParseGroupVersion(n.involved.APIVersion)
	var h maphash.Hash
	h.SetSeed(laneSeed)
	for _, s := range [...]string{n.involved.Kind, gv.Group, n.involved.Namespace, n.involved.Name, string(n.involved.UID)} {
		_, _ = h.WriteString(s) // never fails
		_ = h.WriteByte(0)      // "ab" and "c" are not "a" and "bc"
	}
	return laneKey(h.Sum64())
}

var laneSeed = maphash.MakeSeed()

// equal reports whether two events say the same: everything but the time at
// which they were recorded and, since it is no more than the object's own
// clock, the resource version of the objects.
func (n *notification) equal(o *notification) bool {
	return n.warning == o.warning && n.message == o.message && n.reason == o.reason && n.action == o.action &&
		sameObject(&n.involved, &o.involved) && slices.Equal(n.metadata, o.metadata) &&
		(n.related == nil) == (o.related == nil) && (n.related == nil || sameObject(n.related, o.related))
}

func sameObject(a, b *corev1.ObjectReference) bool {
	x := *b
	x.ResourceVersion = a.ResourceVersion
	return *a == x
}

// event is the payload of the notification.
func (n *notification) event(reportingController, reportingInstance string) Event {
	e := Event{
		InvolvedObject:      n.involved,
		RelatedObject:       n.related,
		Severity:            severityInfo,
		Timestamp:           metav1.NewTime(n.recorded),
		Message:             n.message,
		Reason:              n.reason,
		Action:              n.action,
		ReportingController: reportingController,
		ReportingInstance:   reportingInstance,
	}
	if n.warning {
		e.Severity = severityError
	}
	if len(n.metadata) > 0 {
		e.Metadata = make(map[string]string, len(n.metadata))
		for _, a := range n.metadata {
			e.Metadata[a.key] = a.value
		}
	}
	return e
}

// describe reads what an event needs to know of an object: a reference to it
// and its annotations. The annotations may be the object's own and must not be
// changed.
// Objects that cannot be read, nil and typed nil among them, are an error.
func describe(scheme *runtime.Scheme, object runtime.Object) (ref *corev1.ObjectReference, annotations map[string]string, err error) {
	defer func() {
		// A typed nil, or a struct that embeds a nil pointer: their own
		// methods panic, and there is no other way to find out.
		if p := recover(); p != nil {
			ref, annotations, err = nil, nil, fmt.Errorf("cannot read %T: %v", object, p)
		}
	}()
	ref, err = reference.GetReference(scheme, object)
	if err != nil {
		return nil, nil, err
	}
	if ref == nil {
		return nil, nil, errors.New("nil object reference")
	}
	if own, ok := object.(*corev1.ObjectReference); ok {
		copied := *own // the caller's: nobody may write to it, then or later
		ref = &copied
	}
	if annotated, ok := object.(interface{ GetAnnotations() map[string]string }); ok {
		annotations = annotated.GetAnnotations()
	}
	return ref, annotations, nil
}

// merge appends the annotations of the event, by key: what the controller said, and
// what the object itself says in keys meant for its events, where the controller
// said nothing.
func (c *call) merge(to []annotation) []annotation {
	if len(c.annotations) > cap(to) {
		to = make([]annotation, 0, len(c.annotations))
	}
	for k, v := range c.annotations {
		to = append(to, annotation{k, v})
	}
	for k, v := range c.ofObject {
		if _, said := c.annotations[k]; !said && strings.HasPrefix(k, objectAnnotationPrefix) {
			to = append(to, annotation{k, v})
		}
	}
	slices.SortFunc(to, func(a, b annotation) int { return strings.Compare(a.key, b.key) })
	return to
}

// truncateRunes cuts s to at most limit characters, the mark that says so
// included. Invalid bytes count as one character each, as they do in JSON.
func truncateRunes(s string, limit int) string {
	if len(s) <= limit || utf8.RuneCountInString(s) <= limit {
		return s
	}
	keep := limit - utf8.RuneCountInString(truncationMark)
	for i := range s {
		if keep == 0 {
			return s[:i] + truncationMark
		}
		keep--
	}
	return s // not reached: s has more than limit characters
}
