package events

import (
	"errors"
	"fmt"
	"slices"
	"strings"
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
