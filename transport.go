package events

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// idleTimeout is below the 30 s after which notification-controller closes an
// idle connection, so that no event is posted into a closing one.
const idleTimeout = 20 * time.Second

// sharedTransport serves every recorder that was given no other, so that a
// process with many recorders keeps no more connections than it uses.
var sharedTransport = sync.OnceValue(func() *http.Transport {
	return &http.Transport{
		Proxy:               proxyFromEnvironment,
		DialContext:         dial,
		DialTLSContext:      dialTLS,
		ForceAttemptHTTP2:   true,
		TLSHandshakeTimeout: 10 * time.Second, // through a proxy, which dialTLS does not serve
		MaxIdleConnsPerHost: maxConcurrency,
		IdleConnTimeout:     idleTimeout,
	}
})

// dial and dialTLS end with the attempt that wanted the connection. By itself
// net/http goes on connecting for whoever comes next, so that connections to an
// endpoint that drops every packet or never ends a handshake would pile up; it
// keeps the values of a context, but not its end.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	return attemptDialer(ctx).DialContext(ctx, network, address)
}

func dialTLS(ctx context.Context, network, address string) (net.Conn, error) {
	dialer := tls.Dialer{NetDialer: attemptDialer(ctx), Config: &tls.Config{NextProtos: []string{"h2", "http/1.1"}}}
	return dialer.DialContext(ctx, network, address)
}

func attemptDialer(ctx context.Context) *net.Dialer {
	dialer := &net.Dialer{KeepAlive: 30 * time.Second}
	if deadline, ok := ctx.Value(attemptDeadline{}).(time.Time); ok {
		dialer.Deadline = deadline
	}
	return dialer
}

// attemptDeadline is the key of an attempt's deadline in its context.
type attemptDeadline struct{}

// proxyFromEnvironment is http.ProxyFromEnvironment for host names that end in
// a dot, as the default URL of notification-controller does: NO_PROXY is
// compared with the name as it is written there, without the dot.
func proxyFromEnvironment(req *http.Request) (*url.URL, error) {
	if host := req.URL.Hostname(); strings.HasSuffix(host, ".") {
		u := *req.URL
		u.Host = strings.TrimSuffix(host, ".")
		if port := req.URL.Port(); port != "" {
			u.Host = net.JoinHostPort(u.Host, port)
		}
		req = &http.Request{URL: &u}
	}
	return http.ProxyFromEnvironment(req)
}

// newClient returns the client for single attempts, but for their limit.
func newClient(o *options) *http.Client {
	var client http.Client
	if o.client != nil {
		client = *o.client
	}
	if isNil(client.Transport) {
		client.Transport = sharedTransport()
	}
	client.Timeout = 0 // see attempt
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

// attempt is the transport of one attempt. It limits the attempt as a whole,
// redirects and body included. http.Client.Timeout would do the same, but costs
// two more goroutines for each attempt on a transport that is not net/http's.
//
// It has no CloseIdleConnections on purpose: retryablehttp calls that after
// every failure, which would take the connections from everybody else who uses
// the transport.
type attempt struct {
	next     http.RoundTripper
	deadline time.Time
	status   int // of the answer to the last request, 0 if there was none
}

func (a *attempt) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithDeadline(context.WithValue(req.Context(), attemptDeadline{}, a.deadline), a.deadline)
	a.status = 0
	resp, err := a.next.RoundTrip(req.WithContext(ctx))
	if err == nil && resp == nil {
		err = fmt.Errorf("%T returned neither a response nor an error", a.next)
	}
	if err != nil {
		cancel()
		return resp, err
	}
	a.status = resp.StatusCode
	if resp.Body == nil { // a fault of the transport that net/http mends
		cancel()
		return resp, nil
	}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		// The body is the bare connection, which no context ends, and nobody
		// asked for it.
		_ = resp.Body.Close()
		resp.Body = http.NoBody
	}
	resp.Body = &attemptBody{resp.Body, cancel}
	return resp, nil
}

// attemptBody ends the attempt when it is closed.
type attemptBody struct {
	io.ReadCloser
	end context.CancelFunc
}

func (b *attemptBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}
