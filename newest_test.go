//go:build newest

package events_test

// What only the newest supported versions have; `make newest` sets the tag.

import (
	kubeevents "k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/recorder"

	events "github.com/eventrecorder/events"
)

var (
	_ kubeevents.AnnotatedEventRecorder = (*events.EventsV1Recorder)(nil)
	_ recorder.EventRecorder            = (*events.EventsV1Recorder)(nil)
)
