package events

import "net/http"

// SharedTransport shows tests the transport that recorders share.
func SharedTransport() *http.Transport { return sharedTransport() }

// What tests of connections look at.
var (
	Unsent           = unsent
	CertificateFault = certificateFault
)

const ConnectTimeout = connectTimeout
