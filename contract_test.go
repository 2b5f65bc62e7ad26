package events_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes/scheme"

	events "github.com/eventrecorder/events"
	"github.com/eventrecorder/events/eventstest"
)

// connections counts the connections that a server accepts.
type connections struct{ n atomic.Int64 }

func (c *connections) count(_ net.Conn, state http.ConnState) {
	if state == http.StateNew {
		c.n.Add(1)
	}
}

func serve(t *testing.T, handler http.HandlerFunc) (*httptest.Server, *connections) {
	t.Helper()
	c := &connections{}
	server := httptest.NewUnstartedServer(handler)
	server.Config.ConnState = c.count
	server.Start()
	t.Cleanup(server.Close)
	return server, c
}

func TestBodiesAreClosedSoThatOneConnectionServesAll(t *testing.T) {
	body := strings.Repeat("x", 10_000) // more than a buffer
	for _, status := range []int{202, 400, 404, 429, 304} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			server, conns := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(status)
				if status != 304 {
					_, _ = w.Write([]byte(body))
				}
			})
			h := newHarness(t, server.URL)
			for i := range 50 {
				h.say("a", fmt.Sprint("event ", i))
			}
			h.settled()
			if n := conns.n.Load(); n != 1 {
				t.Errorf("%d connections for 50 events", n)
			}
			h.shutdownNow()
		})
	}
}

func TestAFailureOfOneRecorderDoesNotCostTheOthersTheirConnections(t *testing.T) {
	good, conns := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(202) })
	bad, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })
	h := newHarness(t, good.URL)
	failing := newHarness(t, bad.URL, events.WithRetryWait(time.Millisecond, time.Millisecond))
	for i := range 10 {
		h.say("a", fmt.Sprint("event ", i))
		h.settled()
		failing.say("a", fmt.Sprint("event ", i))
		failing.settled()
	}
	// One, or two if the machine is so busy that net/http gives up a good one.
	if n := conns.n.Load(); n > 2 {
		t.Errorf("%d connections for 10 events", n)
	}
	failing.shutdownNow()
	h.shutdownNow()
}

func TestAnEndlessAnswerEndsWithTheAttempt(t *testing.T) {
	server, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(202)
		for r.Context().Err() == nil {
			if _, err := w.Write([]byte("x")); err != nil {
				return
			}
			w.(http.Flusher).Flush()
		}
	})
	h := newHarness(t, server.URL, events.WithTimeout(100*time.Millisecond))
	h.say("a", "m")
	h.settled()
	h.wantOutcomes(map[string]int{"delivered": 1})
	h.shutdownNow()
}

// authority makes certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{pool: x509.NewCertPool()}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "private CA"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	var der []byte
	der, a.key = a.sign(t, template)
	a.cert, _ = x509.ParseCertificate(der)
	a.pool.AddCert(a.cert)
	return a
}

func (a *authority) sign(t *testing.T, template *x509.Certificate) ([]byte, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	return der, key
}

func (a *authority) certificate(t *testing.T, name string, until time.Time) tls.Certificate {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name},
		NotBefore: until.Add(-2 * time.Hour), NotAfter: until,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	if ip := net.ParseIP(name); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{name}
	}
	der, key := a.sign(t, template)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// A certificate that does not verify is an outage: the event is kept, and delivered
// once it does.
func TestTLS(t *testing.T) {
	ca, stranger := newAuthority(t), newAuthority(t)
	later := time.Now().Add(time.Hour)
	good, clientCert := ca.certificate(t, "127.0.0.1", later), ca.certificate(t, "client", later)
	for _, test := range []struct {
		name    string
		server  tls.Certificate
		require bool // a client certificate
		client  *tls.Config
		fault   string // "": there is none
	}{
		{"a private CA", good, false, &tls.Config{RootCAs: ca.pool}, ""},
		{"a client certificate", good, true, &tls.Config{RootCAs: ca.pool, Certificates: []tls.Certificate{clientCert}}, ""},
		{"an unknown CA", stranger.certificate(t, "127.0.0.1", later), false, &tls.Config{RootCAs: ca.pool}, "unknown authority"},
		{"an expired certificate", ca.certificate(t, "127.0.0.1", time.Now().Add(-time.Minute)), false, &tls.Config{RootCAs: ca.pool}, "expired"},
		{"a certificate of tomorrow", ca.certificate(t, "127.0.0.1", time.Now().Add(26*time.Hour)), false, &tls.Config{RootCAs: ca.pool}, "not yet valid"},
		{"a wrong name", ca.certificate(t, "10.0.0.1", later), false, &tls.Config{RootCAs: ca.pool}, "127.0.0.1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var certificate atomic.Pointer[tls.Certificate]
			certificate.Store(&test.server)
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(202) }))
			server.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
				config := &tls.Config{Certificates: []tls.Certificate{*certificate.Load()}, ClientCAs: ca.pool}
				if test.require {
					config.ClientAuth = tls.RequireAndVerifyClientCert
				}
				return config, nil
			}}
			server.Config.ErrorLog = log.New(io.Discard, "", 0)
			server.StartTLS()
			defer server.Close()
			transport := &http.Transport{TLSClientConfig: test.client.Clone()}
			defer transport.CloseIdleConnections()
			var fault atomic.Value
			h := newHarness(t, server.URL, fast, events.WithHTTPClient(&http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
				resp, err := transport.RoundTrip(r)
				if err != nil {
					fault.Store(err.Error())
				}
				return resp, err
			})}))
			h.say("a", "m")
			if test.fault != "" {
				h.attemptsAreMade(3, 20*time.Second)
				h.wantOutcomes(map[string]int{"pending": 1})
				if text, _ := fault.Load().(string); !strings.Contains(text, test.fault) {
					t.Errorf("fault %q, want %q", text, test.fault)
				}
				certificate.Store(&good) // repaired
			}
			h.settledWithin(20 * time.Second)
			h.wantOutcomes(map[string]int{"delivered": 1})
			if n := h.value("event_recorder_attempts_total"); test.fault == "" && n != 1 {
				t.Errorf("%v attempts, want 1", n)
			}
			h.shutdownNow()
		})
	}
}

// The transport that recorders share, which TestTLS does not use.
func TestACertificateThatTheSharedTransportDoesNotTrustIsAnOutage(t *testing.T) {
	ep := eventstest.NewEndpoint(eventstest.WithTLS())
	defer ep.Close()
	h := newHarness(t, ep.URL(), fast)
	h.say("a", "m")
	h.attemptsAreMade(2, 20*time.Second)
	h.wantOutcomes(map[string]int{"pending": 1})
	if n := len(ep.Requests()); n != 0 {
		t.Errorf("%d requests", n)
	}
	h.shutdownNow()
}

// Whatever is wrong with the certificate, the outage line has the cause.
func TestTheOutageLineHasTheCause(t *testing.T) {
	for want, err := range map[string]error{
		"expired":           &tls.CertificateVerificationError{Err: certExpired},
		"unknown authority": &tls.CertificateVerificationError{Err: certUnknown},
		"is valid for":      &tls.CertificateVerificationError{Err: x509.HostnameError{Host: "a", Certificate: &x509.Certificate{DNSNames: []string{"b"}}}},
		"refused":           errRefused,
		"reset":             errReset,
		"no such host":      &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "a", IsNotFound: true}},
		"HTTP status 500":   nil,
	} {
		t.Run(want, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fail := failWith(err)
				if err == nil {
					fail = answerStatus(500)
				}
				start := time.Now()
				h := newHarness(t, "http://endpoint/", on(roundTripperClient(func(r *http.Request) (*http.Response, error) {
					if time.Since(start) < 30*time.Second {
						return fail(r)
					}
					return answerStatus(202)(r)
				})))
				for i := range 10 {
					h.say(fmt.Sprint("object", i), "m")
				}
				h.settled()
				h.wantOutcomes(map[string]int{"delivered": 10})
				lines := h.log.errors()
				if len(lines) != 1 || lines[0].Message != msgOutage || !strings.Contains(lines[0].Err.Error(), want) {
					t.Errorf("log: %v, want one line with %q", lines, want)
				}
				h.shutdownNow()
			})
		})
	}
}

// After 101 net/http hands over the bare connection, and no deadline ends it.
func TestAnAnswerThatSwitchesProtocolsHoldsNoWorker(t *testing.T) {
	server, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "something")
		w.WriteHeader(http.StatusSwitchingProtocols)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	h := newHarness(t, server.URL, events.WithConcurrency(1))
	for i := range 3 {
		h.say(fmt.Sprint("object", i), "m")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // less than an attempt may take
	defer cancel()
	if err := h.Flush(ctx); err != nil {
		t.Error(err)
	}
	h.wantOutcomes(map[string]int{"rejected": 3})
	h.shutdownNow()
}

func TestEndpointsOnIPv4AndIPv6(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run(address, func(t *testing.T) {
			if l, err := net.Listen("tcp", address); err != nil {
				t.Skipf("no such address on this machine: %v", err)
			} else {
				_ = l.Close()
			}
			ep := eventstest.NewEndpoint(eventstest.WithAddress(address))
			defer ep.Close()
			h := newHarness(t, ep.URL())
			h.say("a", "m")
			h.settled()
			h.wantOutcomes(map[string]int{"delivered": 1})
			h.shutdownNow()
		})
	}
}

// net/http reads the proxy from the environment once for each process, so each
// case is a process of its own: this test, run again.
func TestProxiesOfTheEnvironmentAreUsedButForTheNamesThatAreExempt(t *testing.T) {
	if url := os.Getenv("TEST_ENDPOINT"); url != "" {
		r, err := events.NewRecorderForScheme(scheme.Scheme, nil, logr.Discard(), url, "x", events.WithRetryMax(0),
			events.WithMetricsRegisterer(prometheus.NewRegistry()))
		if err != nil {
			t.Fatal(err)
		}
		r.Event(pod("a"), "Normal", "R", "m")
		wait, err := time.ParseDuration(os.Getenv("TEST_WAIT"))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		_ = r.Shutdown(ctx)
		return
	}
	const name = "http://notification-controller.flux-system.svc.cluster.local"
	for _, test := range []struct {
		url, noProxy string
		proxied      bool
	}{
		{name + "./", "", true},
		{name + "./", ".cluster.local", false},
		{name + "/", ".cluster.local", false},
		{name + ".:8080/", ".cluster.local", false},
		{name + "./", "notification-controller.flux-system.svc.cluster.local", false},
		{name + "./", ".example.com", true},
		{"http://example.com./", ".cluster.local", true},
	} {
		t.Run(test.url+" except "+test.noProxy, func(t *testing.T) {
			var asked atomic.Int64
			proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked.Add(1)
				w.WriteHeader(202)
			}))
			defer proxy.Close()
			wait := "10s" // much more than a proxy on this machine needs
			if !test.proxied {
				wait = "500ms" // the name does not exist, so nothing will come
			}
			again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestProxiesOfTheEnvironmentAreUsedButForTheNamesThatAreExempt$")
			again.Env = append(os.Environ(), "TEST_ENDPOINT="+test.url, "TEST_WAIT="+wait, "HTTP_PROXY="+proxy.URL, "NO_PROXY="+test.noProxy, "http_proxy=", "no_proxy=")
			if out, err := again.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if got := asked.Load() > 0; got != test.proxied {
				t.Errorf("went through the proxy: %v, want %v", got, test.proxied)
			}
		})
	}
}

func TestANameThatDoesNotResolveYetIsAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := eventstest.NewTransport()
		defer tr.Close()
		var known atomic.Bool
		resolves := roundTripper(func(r *http.Request) (*http.Response, error) {
			if !known.Load() {
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: r.URL.Host, IsNotFound: true}}
			}
			return tr.RoundTrip(r)
		})
		h := newHarness(t, "http://not-installed-yet/", events.WithHTTPClient(&http.Client{Transport: resolves}))
		h.log.quiet = true
		for i := range 300 {
			h.say(fmt.Sprint("object", i%10), fmt.Sprint("event ", i))
			time.Sleep(time.Second)
		}
		h.wantOutcomes(map[string]int{"pending": 300})
		if lines := h.log.errors(); len(lines) != 1 || lines[0].Message != msgOutage || !strings.Contains(lines[0].Err.Error(), "no such host") {
			t.Errorf("log: %v", lines)
		}
		known.Store(true)
		h.settled()
		h.wantOutcomes(map[string]int{"delivered": 300})
	})
}

// Every way in which an error or an answer may carry a part of the URL into the
// log, end to end.
func TestNoLogLineShowsASecretOfTheURL(t *testing.T) {
	const url = "http://user:p4ssw0rd@hooks.example.com/services/T0KENINPATH?token=T0KENINQUERY"
	secrets := []string{"p4ssw0rd", "T0KENINPATH", "T0KENINQUERY", "user:"}
	for name, answer := range map[string]func(r *http.Request) (*http.Response, error){
		"refused": func(r *http.Request) (*http.Response, error) { return nil, fmt.Errorf("dial %s: refused", r.URL) },
		"echoed": func(r *http.Request) (*http.Response, error) {
			w := httptest.NewRecorder()
			w.WriteHeader(404)
			_, _ = fmt.Fprintf(w, "Cannot POST %s (%s, user %s)", r.URL.RequestURI(), r.URL, r.URL.User)
			return w.Result(), nil
		},
		"redirected for ever": func(r *http.Request) (*http.Response, error) {
			w := httptest.NewRecorder()
			w.Header().Set("Location", r.URL.String()+"&again")
			w.WriteHeader(307)
			return w.Result(), nil
		},
		"redirected nowhere": func(r *http.Request) (*http.Response, error) {
			w := httptest.NewRecorder()
			w.Header().Set("Location", "http://user:p4ssw0rd@%zz/T0KENINPATH")
			w.WriteHeader(307)
			return w.Result(), nil
		},
		"failing": func(r *http.Request) (*http.Response, error) {
			w := httptest.NewRecorder()
			w.WriteHeader(500)
			_, _ = fmt.Fprint(w, r.URL.String())
			return w.Result(), nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t, url, events.WithHTTPClient(&http.Client{Transport: roundTripper(answer)}))
				h.say("a", "m")
				time.Sleep(time.Minute)
				h.shutdownNow()
				lines := h.log.errors()
				if len(lines) == 0 {
					t.Error("nothing was logged")
				}
				for _, line := range h.log.lines {
					for _, secret := range secrets {
						if strings.Contains(line.String(), secret) {
							t.Errorf("%q in %s", secret, line)
						}
					}
				}
			})
		})
	}
}

// An answer may repeat what is secret in the URL in any form, so none is logged if
// anything may be. Without that, its first bytes are.
func TestAnAnswerIsLoggedOnlyIfTheURLHoldsNoSecret(t *testing.T) {
	body := "because " + strings.Repeat("\u00fc", 1000)
	for url, shown := range map[string]bool{
		"http://host": true, "http://host/": true, "https://host:8080/": true,
		"http://host/path": false, "http://host/?token": false, "http://user@host/": false, "http://user:password@host/": false,
		"http://host/%41": false, "http://host/#fragment": false,
	} {
		for _, status := range []int{404, 500} {
			t.Run(fmt.Sprint(url, " ", status), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					answer := func(r *http.Request) (*http.Response, error) {
						w := httptest.NewRecorder()
						w.WriteHeader(status)
						_, _ = fmt.Fprint(w, body)
						return w.Result(), nil
					}
					h := newHarness(t, url, events.WithHTTPClient(&http.Client{Transport: roundTripper(answer)}))
					h.say("a", "m")
					h.settled()
					lines := h.log.with(msgLost)
					if len(lines) != 1 || lines[0].Keys["status"] != status {
						t.Fatalf("log: %v", h.log.lines)
					}
					got, logged := lines[0].Keys["body"].(string)
					if logged != shown {
						t.Errorf("body %q, want one: %v", got, shown)
					}
					if shown && (len(got) > 256 || len(got) < 250 || !utf8.ValidString(got) || !strings.HasPrefix(body, strings.TrimSuffix(got, "\u2026"))) {
						t.Errorf("body of %d bytes: %q", len(got), got)
					}
					if endpoint := lines[0].Keys["endpoint"].(string); endpoint != "http://host" && endpoint != "https://host:8080" {
						t.Errorf("endpoint %q", endpoint)
					}
					h.shutdownNow()
				})
			})
		}
	}
}

func TestOurIdleTimeoutIsBelowThatOfTheEndpoint(t *testing.T) {
	if got := events.SharedTransport().IdleConnTimeout; got <= 0 || got >= 30*time.Second {
		t.Errorf("idle connections are kept for %v, notification-controller closes them after 30 s", got)
	}
}
