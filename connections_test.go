package events_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	events "github.com/eventrecorder/events"
)

// relay passes connections on to a server, until it swallows what comes on those
// that exist: nothing passes any more, and nobody is told. That is what a
// firewall, a load balancer or a node that went away leaves behind.
type relay struct {
	listener net.Listener
	server   string
	running  sync.WaitGroup

	mu    sync.Mutex
	conns []*relayed
}

type relayed struct {
	client, server net.Conn
	dead           atomic.Bool
}

func newRelay(t *testing.T, server string) *relay {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{listener: listener, server: server}
	r.running.Go(r.accept)
	t.Cleanup(func() {
		_ = listener.Close()
		r.mu.Lock()
		for _, c := range r.conns {
			c.close()
		}
		r.mu.Unlock()
		r.running.Wait()
	})
	return r
}

func (r *relay) address() string { return r.listener.Addr().String() }

func (r *relay) accept() {
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", r.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		c := &relayed{client: client, server: server}
		r.mu.Lock()
		r.conns = append(r.conns, c)
		r.mu.Unlock()
		r.running.Go(func() { c.pass(server, client) })
		r.running.Go(func() { c.pass(client, server) })
	}
}

// pass copies until either side closes. Once the connection is dead it goes on
// reading, so that the sender sees no full buffer either.
func (c *relayed) pass(to, from net.Conn) {
	defer c.close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		if c.dead.Load() {
			continue
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

func (c *relayed) close() {
	_ = c.client.Close()
	_ = c.server.Close()
}

// swallow kills the connections that exist and returns how many there are.
func (r *relay) swallow() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		c.dead.Store(true)
	}
	return len(r.conns)
}

// settledWithin waits until everything recorded so far has an outcome, and
// returns how long that took.
func (h *harness) settledWithin(limit time.Duration) time.Duration {
	h.t.Helper()
	start := time.Now()
	ctx, cancel := context.WithTimeout(h.t.Context(), limit)
	defer cancel()
	if err := h.Flush(ctx); err != nil {
		h.t.Fatalf("after %v: %v", limit, err)
	}
	return time.Since(start)
}

// wantAttempts checks how many attempts were answered with 202 and how many got
// no answer. There must be no others.
func (h *harness) wantAttempts(answered, failed int) {
	h.t.Helper()
	all := h.value("event_recorder_attempts_total")
	ok := h.value("event_recorder_attempts_total", "code", "202")
	bad := h.value("event_recorder_attempts_total", "code", "error")
	if all != ok+bad || int(ok) != answered || int(bad) != failed {
		h.t.Errorf("%v attempts: %v answered with 202, %v without an answer; want %d and %d", all, ok, bad, answered, failed)
	}
}

// fast is for tests in which attempts fail: the waits are not what they look at.
var fast = events.WithRetryWait(time.Millisecond, 10*time.Millisecond)

// A dead connection costs one attempt, and so do eight of them: the next attempt
// must not take the next dead one.
func TestDeadConnectionsCostOneAttempt(t *testing.T) {
	for _, idle := range []int{1, 8} {
		t.Run(fmt.Sprint(idle, " idle"), func(t *testing.T) {
			together := make(chan struct{})
			var waiting atomic.Int64
			server, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				switch n := int(waiting.Add(1)); {
				case n < idle: // until there is one connection for each
					<-together
				case n == idle:
					close(together)
				}
				w.WriteHeader(202)
			})
			relay := newRelay(t, server.Listener.Addr().String())
			h := newHarness(t, "http://"+relay.address(), fast, events.WithTimeout(time.Second), events.WithConcurrency(8))
			for i := range idle {
				h.say(fmt.Sprint("object", i), "m")
			}
			h.settledWithin(10 * time.Second)
			if n := relay.swallow(); n != idle {
				t.Fatalf("%d connections, want %d", n, idle)
			}
			h.say("late", "m")
			took := h.settledWithin(10 * time.Second)
			t.Logf("took %v", took)
			h.wantOutcomes(map[string]int{"delivered": idle + 1})
			h.wantAttempts(idle+1, 1)
			h.shutdownNow()
		})
	}
}

// http2Server is a server with HTTP/2, and a client for it whose transport is the
// shared one but for the certificate that it trusts.
func http2Server(t *testing.T, handler http.HandlerFunc) (*httptest.Server, *http.Client) {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	client, transport := trusting(server.Certificate())
	t.Cleanup(transport.CloseIdleConnections)
	return server, client
}

func trusting(certificate *x509.Certificate) (*http.Client, *http.Transport) {
	transport := events.SharedTransport().Clone()
	if transport.TLSClientConfig == nil {
		transport.TLSClientConfig = &tls.Config{}
	}
	transport.TLSClientConfig.RootCAs = x509.NewCertPool()
	transport.TLSClientConfig.RootCAs.AddCert(certificate)
	return &http.Client{Transport: transport}, transport
}

// All posts share one HTTP/2 connection, so while there is always one under way
// it is never idle, and only pings find out that it is dead. An attempt may take
// longer than that.
func TestADeadHTTP2ConnectionIsFoundWithoutTheEndOfAnAttempt(t *testing.T) {
	t.Parallel()
	server, client := http2Server(t, func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			t.Errorf("posted with %s", r.Proto)
		}
		w.WriteHeader(202)
	})
	relay := newRelay(t, server.Listener.Addr().String())
	h := newHarness(t, "https://"+relay.address(), fast, events.WithTimeout(time.Minute), events.WithHTTPClient(client))
	h.say("a", "before")
	h.settledWithin(10 * time.Second)
	if n := relay.swallow(); n != 1 {
		t.Fatalf("%d connections", n)
	}
	const objects = 20
	for i := range objects {
		h.say(fmt.Sprint("object", i), "m")
	}
	took := h.settledWithin(8 * time.Second)
	t.Logf("took %v", took)
	h.wantOutcomes(map[string]int{"delivered": objects + 1})
	h.shutdownNow()
}

func TestHTTP2IsUsedWhereTheEndpointHasIt(t *testing.T) {
	var protocols sync.Map
	server, client := http2Server(t, func(w http.ResponseWriter, r *http.Request) {
		protocols.Store(r.Proto, true)
		w.WriteHeader(202)
	})
	h := newHarness(t, server.URL, events.WithHTTPClient(client))
	h.say("a", "m")
	h.settledWithin(10 * time.Second)
	protocols.Range(func(protocol, _ any) bool {
		if protocol != "HTTP/2.0" {
			t.Errorf("posted with %v", protocol)
		}
		return true
	})
	h.wantOutcomes(map[string]int{"delivered": 1})
	h.shutdownNow()
}

// net/http reads GODEBUG when a process begins, so this is a process of its own:
// this test, run again.
func TestHTTP2SwitchedOffInTheProcess(t *testing.T) {
	if url := os.Getenv("TEST_HTTPS_ENDPOINT"); url != "" {
		block, _ := pem.Decode([]byte(os.Getenv("TEST_CERTIFICATE")))
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		client, transport := trusting(certificate)
		defer transport.CloseIdleConnections()
		h := newHarness(t, url, events.WithHTTPClient(client))
		h.say("a", "m")
		h.settledWithin(10 * time.Second)
		h.wantOutcomes(map[string]int{"delivered": 1})
		h.wantAttempts(1, 0)
		h.shutdownNow()
		return
	}
	var protocol atomic.Value
	server, _ := http2Server(t, func(w http.ResponseWriter, r *http.Request) {
		protocol.Store(r.Proto)
		w.WriteHeader(202)
	})
	again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHTTP2SwitchedOffInTheProcess$")
	again.Env = append(os.Environ(), "GODEBUG=http2client=0", "TEST_HTTPS_ENDPOINT="+server.URL,
		"TEST_CERTIFICATE="+string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	if out, err := again.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got := protocol.Load(); got != "HTTP/1.1" {
		t.Errorf("posted with %v", got)
	}
}

// Many servers and load balancers close a kept-alive connection without a word
// in its headers. A post into such a connection was never seen by anybody, and
// is not worth a wait.
func TestConnectionsThatTheServerClosesSilentlyCostNothing(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var (
		running  sync.WaitGroup
		mu       sync.Mutex
		accepted = map[string]int{}
	)
	answer := func(conn net.Conn) {
		defer conn.Close()
		request, err := http.ReadRequest(bufio.NewReader(conn))
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, request.Body)
		mu.Lock()
		accepted[request.Header.Get("Idempotency-Key")]++
		mu.Unlock()
		_, _ = io.WriteString(conn, "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")
		// Not to wait for something, but to be late: the client has the answer
		// and may have posted again, or not.
		time.Sleep(time.Millisecond)
	}
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() { answer(conn) })
		}
	})
	h := newHarness(t, "http://"+listener.Addr().String())
	const count = 200
	for i := range count {
		h.say(fmt.Sprint("object", i%8), fmt.Sprint("event ", i))
	}
	took := h.settledWithin(2 * time.Second)
	t.Logf("took %v", took)
	h.wantOutcomes(map[string]int{"delivered": count})
	h.wantAttempts(count, 0)
	h.shutdownNow()
	_ = listener.Close()
	running.Wait()
	if len(accepted) != count {
		t.Errorf("%d events accepted, want %d", len(accepted), count)
	}
	for key, n := range accepted {
		if n != 1 {
			t.Errorf("%s was accepted %d times", key, n)
		}
	}
}

// stalled is a listener that says nothing to whoever connects. Each connection is
// sent when the client has closed it.
func stalled(t *testing.T) (address string, closed <-chan struct{}) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	ends := make(chan struct{}, 100)
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				_, _ = io.Copy(io.Discard, conn)
				_ = conn.Close()
				ends <- struct{}{}
			})
		}
	})
	t.Cleanup(func() { _ = listener.Close(); running.Wait() })
	return listener.Addr().String(), ends
}

// attemptsAreMade waits until n attempts are counted.
func (h *harness) attemptsAreMade(n int, within time.Duration) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), within)
	defer cancel()
	for h.value("event_recorder_attempts_total") < float64(n) {
		if ctx.Err() != nil {
			h.t.Fatalf("%v attempts within %v, want %d", h.value("event_recorder_attempts_total"), within, n)
		}
		wait, done := context.WithTimeout(ctx, 5*time.Millisecond)
		_ = h.Flush(wait) // never empty: nobody answers
		done()
	}
}

func TestATLSHandshakeEndsWithItsAttempt(t *testing.T) {
	address, closed := stalled(t)
	h := newHarness(t, "https://"+address, events.WithTimeout(200*time.Millisecond), events.WithRetryWait(time.Minute, time.Minute))
	h.say("a", "m")
	h.attemptsAreMade(1, 3*time.Second)
	select {
	case <-closed:
	case <-time.After(3 * time.Second): // less than connectTimeout
		t.Error("the connection of an attempt that is over is still open")
	}
	h.shutdownNow()
}

func TestATLSHandshakeEndsInTimeInALongAttempt(t *testing.T) {
	t.Parallel()
	address, closed := stalled(t)
	h := newHarness(t, "https://"+address, events.WithTimeout(time.Minute), events.WithRetryWait(time.Minute, time.Minute))
	start := time.Now()
	errs := make(chan error, 1)
	go func() { // the error that unsent must know
		_, err := events.SharedTransport().RoundTrip(postRaw(t, "https://"+address))
		errs <- err
	}()
	h.say("a", "m")
	for range 2 {
		select {
		case <-closed:
		case <-time.After(2 * events.ConnectTimeout):
			t.Fatal("the connection is still open")
		}
	}
	h.attemptsAreMade(1, 3*time.Second)
	if took := time.Since(start); took < events.ConnectTimeout-time.Second {
		t.Errorf("ended after %v", took)
	}
	h.shutdownNow()
	if err := <-errs; !events.Unsent(err) {
		t.Errorf("counts as sent: %v", err)
	}
}

func postRaw(t *testing.T, url string) *http.Request {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	return request
}

// writes counts the writes on a connection.
type writes struct {
	net.Conn
	n *atomic.Int64
}

func (w writes) Write(p []byte) (int, error) {
	w.n.Add(1)
	return w.Conn.Write(p)
}

// net/http writes a body that it does not know to be in memory apart from the
// header: two packets, and two system calls.
func TestAPostIsOneWrite(t *testing.T) {
	server, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(202) })
	var n atomic.Int64
	transport := events.SharedTransport().Clone()
	defer transport.CloseIdleConnections()
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return writes{conn, &n}, err
	}
	h := newHarness(t, server.URL, events.WithHTTPClient(&http.Client{Transport: transport}))
	for i := range 3 {
		h.say("a", fmt.Sprint("event ", i))
	}
	h.settledWithin(10 * time.Second)
	if n.Load() != 3 {
		t.Errorf("%d writes for 3 posts", n.Load())
	}
	h.shutdownNow()
}

func TestRequestsSayWhoPostsAndWhichEvent(t *testing.T) {
	var keys sync.Map
	var answered atomic.Int64
	server, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("User-Agent"); got != "eventrecorder-events" {
			t.Errorf("User-Agent %q", got)
		}
		keys.Store(r.Header.Get("Idempotency-Key"), true)
		if answered.Add(1)%2 == 1 {
			w.WriteHeader(503) // so that each event has two attempts
			return
		}
		w.WriteHeader(202)
	})
	h := newHarness(t, server.URL, fast)
	for i := range 3 {
		h.say("a", fmt.Sprint("event ", i))
	}
	h.settledWithin(10 * time.Second)
	count := 0
	keys.Range(func(key, _ any) bool {
		if count++; key == "" {
			t.Error("a post without a key")
		}
		return true
	})
	if count != 3 || answered.Load() != 6 {
		t.Errorf("%d keys in %d posts, want 3 in 6", count, answered.Load())
	}
	h.shutdownNow()
}

// Or each post of a busy recorder would connect anew: net/http keeps two by itself.
func TestAsManyConnectionsAreKeptAsThereArePostsAtATime(t *testing.T) {
	const atATime = 8
	var waiting atomic.Int64
	gates := [2]chan struct{}{make(chan struct{}), make(chan struct{})}
	server, conns := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		n := int(waiting.Add(1)) - 1
		if gate := gates[n/atATime]; n%atATime == atATime-1 {
			close(gate) // all of them are here
		} else {
			<-gate
		}
		w.WriteHeader(202)
	})
	h := newHarness(t, server.URL)
	for round := range gates {
		for i := range atATime {
			h.say(fmt.Sprint("object", i), fmt.Sprint("round ", round))
		}
		h.settledWithin(10 * time.Second)
	}
	if n := conns.n.Load(); n != atATime {
		t.Errorf("%d connections for two rounds of %d posts at a time", n, atATime)
	}
	h.shutdownNow()
}

// The endpoint has answered, so its connections are good, and those of others.
func TestAnswersOfTroubleCostNoConnection(t *testing.T) {
	for _, status := range []int{500, 503} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			var posts atomic.Int64
			server, conns := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				if posts.Add(1) < 6 { // after four, one every 1 to 2 s
					w.WriteHeader(status)
					_, _ = io.WriteString(w, strings.Repeat("x", 10_000))
					return
				}
				w.WriteHeader(202)
			})
			h := newHarness(t, server.URL, fast, events.WithRetryMax(100))
			h.say("a", "m")
			h.settledWithin(10 * time.Second)
			if n := conns.n.Load(); n != 1 {
				t.Errorf("%d connections for 6 posts", n)
			}
			h.shutdownNow()
		})
	}
}

func TestWhatIsCertainlyUnsent(t *testing.T) {
	dial := &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	name := &net.DNSError{Err: "no such host", Name: "x", IsNotFound: true}
	unknown := x509.UnknownAuthorityError{}
	verification := &tls.CertificateVerificationError{Err: unknown}
	for _, test := range []struct {
		err                 error
		unsent, certificate bool
	}{
		{nil, false, false},
		{dial, true, false},
		{name, true, false},
		{&net.OpError{Op: "dial", Net: "tcp", Err: name}, true, false},
		{&net.OpError{Op: "proxyconnect", Net: "tcp", Err: errors.New("x")}, true, false},
		{&net.OpError{Op: "socks connect", Net: "tcp", Err: errors.New("x")}, true, false},
		{verification, true, true},
		{&net.OpError{Op: "proxyconnect", Net: "tcp", Err: verification}, true, true},
		{unknown, true, true},
		{x509.HostnameError{Certificate: &x509.Certificate{}}, true, true},
		{x509.CertificateInvalidError{Cert: &x509.Certificate{}, Reason: x509.Expired}, true, true},
		{&net.OpError{Op: "read", Net: "tcp", Err: errors.New("connection reset by peer")}, false, false},
		{&net.OpError{Op: "write", Net: "tcp", Err: errors.New("broken pipe")}, false, false},
		{&net.OpError{Op: "remote error", Err: errors.New("tls: internal error")}, false, false},
		{io.EOF, false, false},
		{io.ErrUnexpectedEOF, false, false},
		{context.DeadlineExceeded, false, false},
		{context.Canceled, false, false},
		{errors.New("http2: client connection lost"), false, false},
		{errors.New("dial tcp: connection refused"), false, false}, // only a text
	} {
		for _, err := range []error{test.err, &url.Error{Op: "Post", URL: "http://x/", Err: test.err}} {
			if test.err == nil {
				err = nil
			}
			if got := events.Unsent(err); got != test.unsent {
				t.Errorf("unsent(%v) is %v", err, got)
			}
			if got := events.CertificateFault(err); got != test.certificate {
				t.Errorf("certificateFault(%v) is %v", err, got)
			}
		}
	}
}

// The same of errors as net/http makes them.
func TestCertificatesThatDoNotVerifyAreKnownAsSuch(t *testing.T) {
	ca, stranger := newAuthority(t), newAuthority(t)
	for name, certificate := range map[string]tls.Certificate{
		"expired":       ca.certificate(t, "127.0.0.1", time.Now().Add(-time.Minute)),
		"not yet valid": ca.certificate(t, "127.0.0.1", time.Now().Add(4*time.Hour)), // from two hours before its end
		"unknown":       stranger.certificate(t, "127.0.0.1", time.Now().Add(time.Hour)),
		"another name":  ca.certificate(t, "10.0.0.1", time.Now().Add(time.Hour)),
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewUnstartedServer(http.NotFoundHandler())
			server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
			server.StartTLS()
			defer server.Close()
			client, transport := trusting(ca.cert)
			defer transport.CloseIdleConnections()
			resp, err := client.Do(postRaw(t, server.URL))
			if err == nil {
				_ = resp.Body.Close()
			}
			if !events.CertificateFault(err) || !events.Unsent(err) {
				t.Errorf("certificateFault is %v, unsent is %v: %v", events.CertificateFault(err), events.Unsent(err), err)
			}
		})
	}
}
