package events

import (
	"net/http"

	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// SharedTransport shows tests the transport that recorders share.
func SharedTransport() *http.Transport { return sharedTransport() }

// What tests of connections look at.
var (
	Unsent           = unsent
	CertificateFault = certificateFault
)

const ConnectTimeout = connectTimeout

// DrainOnStop is what a manager stops.
func DrainOnStop(r *EventRecorder) manager.Runnable { return drainOnStop{r} }
