package eventstest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"sync"
	"time"
)

// An Option changes how [NewEndpoint] or [NewTransport] sets up its endpoint.
type Option func(*options)

type options struct {
	window  time.Duration
	address string
	tls     bool
}

func newOptions(opts []Option) options {
	o := options{window: defaultWindow, address: "127.0.0.1:0"}
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// WithWindow sets the length of the ticks in which an event is taken at most once,
// like notification-controller's flag --rate-limit-interval. The default is 5
// minutes. With zero or less every event is taken, and the answers carry no
// X-RateLimit headers.
func WithWindow(d time.Duration) Option {
	return func(o *options) { o.window = max(d, 0) }
}

// WithTLS serves https with a self-signed certificate that is made for this
// endpoint, in place of http. The client that [Endpoint.Client] returns trusts
// it. A [Transport] has no use for it and ignores it.
func WithTLS() Option {
	return func(o *options) { o.tls = true }
}

// WithAddress sets the TCP address to listen on, as host:port; port 0 is any
// that is free. The default is "127.0.0.1:0". With an address that cannot be
// listened on, [NewEndpoint] panics. A [Transport] has no use for it and ignores
// it.
func WithAddress(addr string) Option {
	return func(o *options) { o.address = addr }
}

// An Endpoint is a notification endpoint that listens on a port of this
// machine. Make it with [NewEndpoint], and end it with [Endpoint.Close].
//
// It is safe for concurrent use.
type Endpoint struct {
	core

	url    string
	addr   string      // what Up listens on: the address that the first listener got
	tls    *tls.Config // nil for http
	client *http.Client

	// running counts connections and requests. It is added to by a connection
	// while its server accepts, and by a request while its connection counts.
	running sync.WaitGroup

	// life orders Down, Up and Close. It guards server, which is nil while the
	// endpoint is down.
	life   sync.Mutex
	server *server
}

// server is one life of an endpoint, from listening to going down.
type server struct {
	http *http.Server
	done chan struct{} // closed when no further connection will be accepted

	mu    sync.Mutex
	conns map[net.Conn]struct{}
}

// NewEndpoint starts an endpoint. It panics if it cannot listen.
func NewEndpoint(opts ...Option) *Endpoint {
	o := newOptions(opts)
	ep := &Endpoint{core: core{window: window{interval: o.window}}}

	scheme, transport := "http", &http.Transport{}
	if o.tls {
		scheme = "https"
		certificate, roots := selfSigned(o.address)
		ep.tls = &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"http/1.1"}}
		transport.TLSClientConfig = &tls.Config{RootCAs: roots}
	}
	listener, err := net.Listen("tcp", o.address)
	if err != nil {
		panic(fmt.Sprintf("eventstest: WithAddress(%q): %v", o.address, err))
	}
	ep.addr = listener.Addr().String()
	ep.url = scheme + "://" + ep.addr
	ep.client = &http.Client{Transport: transport}
	ep.server = ep.serve(listener)
	return ep
}

// URL returns the address of the endpoint, such as "http://127.0.0.1:41234",
// without a path. Every path under it reaches the same handler. It stays the
// same for the life of the endpoint.
func (ep *Endpoint) URL() string { return ep.url }

// Client returns a client for the endpoint, always the same one. It trusts the
// certificate of [WithTLS], uses no proxy and has no timeout.
func (ep *Endpoint) Client() *http.Client { return ep.client }

// Close ends every request in progress and every connection, stops listening,
// and returns when no goroutine of the endpoint is left. What the endpoint
// received can still be asked for. Every call after the first does nothing. A
// [Behavior] must not call it, since it waits for that Behavior to return.
func (ep *Endpoint) Close() {
	ep.life.Lock()
	_ = ep.enter(closed)
	ep.stopLocked()
	ep.life.Unlock()
	// Without the lock, since a Behavior may be in the middle of Down or Up.
	ep.running.Wait()
}

// Down closes the port and every connection: from now on connections are
// refused, until [Endpoint.Up]. Requests in progress end without an answer.
// A client other than that of [Endpoint.Client] may first try an idle connection
// of its own, and then sees that one end. What the endpoint received and what it
// remembers of duplicates stays; see [Endpoint.Forget]. It does nothing if the
// endpoint is down already.
func (ep *Endpoint) Down() {
	ep.life.Lock()
	defer ep.life.Unlock()
	_ = ep.enter(down)
	ep.stopLocked()
}

// Up listens again on the same address. It does nothing if the endpoint is up.
// It returns an error if it cannot listen within one second, because something
// else has taken the port, or if the endpoint is closed.
func (ep *Endpoint) Up() error {
	ep.life.Lock()
	defer ep.life.Unlock()
	if ep.server != nil {
		return nil
	}
	if err := ep.enter(serving); err != nil {
		return fmt.Errorf("eventstest: Up after Close: %w", err)
	}
	listener, err := listenAgain(ep.addr)
	if err != nil {
		_ = ep.enter(down)
		return fmt.Errorf("eventstest: Up: %w", err)
	}
	ep.server = ep.serve(listener)
	return nil
}

// listenAgain bears with a port that is held for a moment: the system hands out
// the ports that nobody listens on to outgoing connections too.
func listenAgain(addr string) (net.Listener, error) {
	deadline := time.Now().Add(time.Second)
	for {
		listener, err := net.Listen("tcp", addr)
		if err == nil || time.Now().After(deadline) {
			return listener, err
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (ep *Endpoint) serve(listener net.Listener) *server {
	s := &server{
		http:  newServer(ep.serveHTTP),
		done:  make(chan struct{}),
		conns: make(map[net.Conn]struct{}),
	}
	s.http.ConnState = func(conn net.Conn, state http.ConnState) {
		s.mu.Lock()
		defer s.mu.Unlock()
		switch state {
		case http.StateNew:
			s.conns[conn] = struct{}{}
			ep.running.Add(1)
		case http.StateClosed, http.StateHijacked:
			delete(s.conns, conn)
			ep.running.Done()
		}
	}
	if ep.tls != nil {
		listener = tls.NewListener(listener, ep.tls)
	}
	go func() {
		defer close(s.done)
		_ = s.http.Serve(listener)
	}()
	return s
}

func (ep *Endpoint) stopLocked() {
	s := ep.server
	if s == nil {
		return
	}
	ep.server = nil
	_ = s.http.Close()
	<-s.done

	// The server does not know of a connection yet that it was accepting while
	// it was closed.
	s.mu.Lock()
	left := make([]net.Conn, 0, len(s.conns))
	for conn := range s.conns {
		left = append(left, conn)
	}
	s.mu.Unlock()
	for _, conn := range left {
		_ = conn.Close()
	}
	ep.client.CloseIdleConnections()
}

func (ep *Endpoint) serveHTTP(w http.ResponseWriter, r *http.Request) {
	ep.running.Add(1)
	defer ep.running.Done()
	switch err := ep.handle(w, r); err {
	case nil:
	case errReset:
		reset(w)
	default:
		panic(http.ErrAbortHandler)
	}
}

// reset closes the connection behind w so that the client gets a TCP reset
// where an orderly end would be.
func reset(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// selfSigned makes a certificate for the local machine and for the host that
// is listened on.
func selfSigned(address string) (tls.Certificate, *x509.CertPool) {
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{Organization: []string{"eventstest"}},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().AddDate(1, 0, 0),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		IsCA:                  true,
		DNSNames:              []string{"localhost"},
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	if host, _, err := net.SplitHostPort(address); err == nil && host != "" {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(fmt.Sprintf("eventstest: WithTLS: %v", err))
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		panic(fmt.Sprintf("eventstest: WithTLS: %v", err))
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		panic(fmt.Sprintf("eventstest: WithTLS: %v", err))
	}
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, roots
}
