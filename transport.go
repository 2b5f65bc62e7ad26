package events

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-retryablehttp"
)

const (
	// idleTimeout is below the 30 s after which notification-controller closes an
	// idle connection, so that no event is posted into a closing one.
	idleTimeout = 20 * time.Second

	// connectTimeout is for the TCP connection, and again for the TLS handshake.
	// Neither outlives its attempt: see oneAttempt.
	connectTimeout = 5 * time.Second

	// An HTTP/2 connection that is silent for pingAfter is pinged, and given up
	// pingTimeout later, together 5 s. All posts to an endpoint share one
	// connection, which is never idle while there are others to post, so nothing
	// else would find out that it is dead. An endpoint may need longer than that
	// for an answer, but not for a pong.
	pingAfter   = 2 * time.Second
	pingTimeout = 3 * time.Second

	// maxDrainedBody is how much of an answer is read so that its connection
	// can be used again; a longer answer costs the connection.
	maxDrainedBody = 64 << 10
)

// sharedTransport serves every recorder that was given no other, so that a
// process with many recorders keeps no more connections than it uses.
//
// TLS is left to net/http: a TLS dialer of our own would have to know whether
// net/http can speak HTTP/2, which GODEBUG=http2client=0 changes.
var sharedTransport = sync.OnceValue(func() *http.Transport {
	return &http.Transport{
		Proxy:               proxyFromEnvironment,
		DialContext:         (&net.Dialer{Timeout: connectTimeout}).DialContext,
		TLSHandshakeTimeout: connectTimeout,
		ForceAttemptHTTP2:   true, // in spite of the dialer
		HTTP2:               &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
		MaxIdleConnsPerHost: maxConcurrency,
		IdleConnTimeout:     idleTimeout,
	}
})

// proxyFromEnvironment is http.ProxyFromEnvironment for host names that end in
// a dot, as the default URL of notification-controller does: NO_PROXY is
// compared with the name as it is written there, without the dot.
func proxyFromEnvironment(req *http.Request) (*url.URL, error) {
	if host := req.URL.Hostname(); strings.HasSuffix(host, ".") {
		u := *req.URL
		u.Host = net.JoinHostPort(strings.TrimSuffix(host, "."), req.URL.Port())
		req = &http.Request{URL: &u}
	}
	return http.ProxyFromEnvironment(req)
}

// newClient returns a copy of the user's client, or one on the shared transport.
func newClient(o *options) *http.Client {
	var client http.Client
	if o.client != nil {
		client = *o.client
	}
	if isNil(client.Transport) {
		client.Transport = sharedTransport()
	}
	client.Timeout = 0 // the context of an attempt limits it, without a goroutine of its own
	next := client.CheckRedirect
	client.CheckRedirect = func(req *http.Request, via []*http.Request) error {
		switch {
		case req.Method != http.MethodPost:
			return http.ErrUseLastResponse // the event would not arrive as a GET
		case next != nil:
			return next(req, via)
		case len(via) >= 10:
			return errors.New("stopped after 10 redirects")
		}
		return nil
	}
	return &client
}

// oneAttempt returns a client whose Do makes one attempt and leaves the verdict
// to the caller. The context of the request limits the attempt as a whole, from
// connecting to the end of the body.
//
// After an attempt that got no answer, and only then, Do closes the transport's
// idle connections. The one that swallowed the event may not be the only one that
// died: without this, each attempt would try the next. It also ends connecting
// for attempts that are over, with which net/http by itself goes on for whoever
// comes next, so that dials to an endpoint that drops every packet do not pile up.
func oneAttempt(client *http.Client) *retryablehttp.Client {
	return &retryablehttp.Client{
		HTTPClient: client,
		// An error, or a wish to retry, would close idle connections after an
		// answer too, and take them from everybody else who uses the transport.
		CheckRetry:   func(context.Context, *http.Response, error) (bool, error) { return false, nil },
		ErrorHandler: retryablehttp.PassthroughErrorHandler,
	}
}

// finish closes an answer, once it is read as far as it is wanted, so that its
// connection can be used again.
func finish(resp *http.Response) {
	// After 101 the body is the bare connection, which no context ends, and
	// nobody asked for it.
	if resp.StatusCode != http.StatusSwitchingProtocols {
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, maxDrainedBody))
	}
	_ = resp.Body.Close()
}

// badRedirect reports whether an attempt was answered by a redirect to what is no
// URL. Of its answer net/http leaves nothing but the text of the error.
func badRedirect(err error) bool {
	return err != nil && strings.Contains(err.Error(), "failed to parse Location header")
}

// unsent reports whether an attempt that ended with err has certainly not sent
// the event: it got no connection. Of any other the endpoint may have taken it.
func unsent(err error) bool {
	var op *net.OpError
	if errors.As(err, &op) && (op.Op == "dial" || op.Op == "proxyconnect" || op.Op == "socks connect") {
		return true
	}
	var dns *net.DNSError
	return errors.As(err, &dns) || certificateFault(err) || handshakeTimeout(err)
}

// handshakeTimeout reports whether net/http gave up a TLS handshake, for which it
// has no public error.
func handshakeTimeout(err error) bool {
	return err != nil && strings.HasSuffix(err.Error(), "net/http: TLS handshake timeout")
}

// certificateFault reports whether the certificate of the endpoint did not
// verify.
func certificateFault(err error) bool {
	var (
		verification *tls.CertificateVerificationError // as crypto/tls reports the others
		authority    x509.UnknownAuthorityError
		name         x509.HostnameError
		invalid      x509.CertificateInvalidError
	)
	return errors.As(err, &verification) || errors.As(err, &authority) ||
		errors.As(err, &name) || errors.As(err, &invalid)
}
