package events

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	kubeevents "k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

const (
	defaultRetryMax     = 9
	defaultRetryWaitMin = time.Second
	defaultRetryWaitMax = 10 * time.Second
	defaultRetryAfter   = 30 * time.Second // the longest that is obeyed
	defaultTimeout      = 16 * time.Second
	defaultConcurrency  = 32
	maxConcurrency      = 256
	minDuration         = time.Millisecond // less is a number without a unit
	minQueueBytes       = 1 << 10          // less is a number of something else
	defaultQueueBytes   = 16 << 20
	defaultMaxAge       = time.Hour
	defaultDrainTimeout = 8 * time.Second
)

// Option changes a default of a recorder. Options are checked together when the
// recorder is made: a bad value is an error of the constructor that names the
// option, the value and the rule. Of an option given twice, the last counts.
type Option func(*options)

type options struct {
	client        *http.Client
	clientSet     bool
	retryMax      int
	retryWaitMin  time.Duration
	retryWaitMax  time.Duration
	retryAfterMax time.Duration
	timeout       time.Duration
	timeoutSet    bool
	concurrency   int
	queueBytes    int
	maxAge        time.Duration
	drainTimeout  time.Duration
	journalDir    string
	journalSet    bool
	registerer    prometheus.Registerer
	coreV1        record.EventRecorder
	coreV1Set     bool
	eventsV1      kubeevents.EventRecorder
	eventsV1Set   bool
}

// WithHTTPClient posts through a client of your own, for TLS, client
// certificates, authentication headers, tracing or a proxy. Default: a client
// on a transport that all recorders of the process share. The client is copied
// and not changed; its transport is used as it is, and a nil Transport means the
// shared one. A Timeout of the client counts unless WithTimeout is given. Its
// CheckRedirect is asked only about redirects that keep the POST. nil is an error.
//
// After an attempt that got no answer the recorder closes the transport's idle
// connections, also those of others who use it, since one that died without a word
// may not be the only one. A transport that wraps another one should pass
// CloseIdleConnections on.
//
// A transport of your own should close idle connections sooner than the endpoint
// does (IdleConnTimeout below the 30 s of Flux's notification-controller), limit
// connecting (a dialer's Timeout and TLSHandshakeTimeout of about 5 s), and, if it
// speaks HTTP/2, ping (HTTP2.SendPingTimeout and PingTimeout of a few seconds each):
// all posts share one HTTP/2 connection, and without pings one that has died is
// used until the attempts on it end.
func WithHTTPClient(client *http.Client) Option {
	return func(o *options) { o.client, o.clientSet = client, true }
}

// WithRetryMax sets how often an event may fail again while the endpoint serves
// others, before it is given up (outcome exhausted). Default: 9. A failure while
// the endpoint serves nobody does not count, and one while it serves a part of the
// attempts counts as that part; the first failure of an event never counts. So it
// is no number of attempts: an event that alone fails ends after ten, and
// in an outage attempts have no limit but the age of the event ([WithMaxAge]).
// go-retryablehttp's default of 4 would lose up to 1.8 % of all events while a part
// of the attempts fails at random; 9 loses about 0.01 % at most. With 0, an event ends with its
// second failure, if others were served since its first. 0 or more; a negative number is an error.
func WithRetryMax(retries int) Option {
	return func(o *options) { o.retryMax = retries }
}

// WithRetryWait sets the wait between two attempts of an event: it begins at up to
// minWait, doubles each time up to maxWait, and is spread at random between half of
// that and all of it (see [Backoff]). A Retry-After header of a 503 takes its
// place, up to maxWait. Default: 1 s and 10 s, and up to 30 s for Retry-After.
// While the endpoint is down its probes set the pace, one every 1 to 2 s; in a drain
// a wait is at most 1 s. minWait must be at least 1 ms and not above maxWait;
// otherwise it is an error.
func WithRetryWait(minWait, maxWait time.Duration) Option {
	return func(o *options) { o.retryWaitMin, o.retryWaitMax, o.retryAfterMax = minWait, maxWait, maxWait }
}

// WithTimeout limits each attempt: from connecting, which has 5 s of it, to the end
// of the answer's body, redirects included, waits between attempts not. Default:
// 16 s, or the Timeout of the client given with WithHTTPClient. It is above the 15 s
// that notification-controller gives its own handler: a client that goes earlier
// makes it drop the notification, and the next attempt is answered 429. In a drain
// an attempt has at most 4 s. It must be at least 1 ms; otherwise it is an error.
func WithTimeout(perAttempt time.Duration) Option {
	return func(o *options) { o.timeout, o.timeoutSet = perAttempt, true }
}

// WithConcurrency limits how many events are posted at the same time, each about
// a different object, and so the goroutines and connections of the recorder.
// Objects whose events fail have at most half of them. Default: 32. A count from 1
// to 256; any other is an error.
func WithConcurrency(posts int) Option {
	return func(o *options) { o.concurrency = posts }
}

// WithQueueBytes limits the memory that pending events may hold. Beyond it the
// oldest waiting events are dropped: those of the object that the new event is
// about, else the oldest of all. Default: 16 MiB, 20,000 to 35,000 typical events.
// In bytes, about as the heap holds them, at least 1 KiB; less is an error. An
// event larger than the limit, or than 3 MiB, which notification-controller does
// not take, is dropped itself. The JSON of the events being
// posted comes on top: at most as many as [WithConcurrency] allows, each as large
// as its event, or up to six times that if it consists of what JSON escapes.
func WithQueueBytes(bytes int) Option {
	return func(o *options) { o.queueBytes = bytes }
}

// WithMaxAge sets for how long an event is worth delivering: one recorded
// longer ago is dropped when its turn comes. Default: one hour, for which the
// API server keeps events by default (kube-apiserver --event-ttl). It must be at
// least 1 ms; otherwise it is an error.
func WithMaxAge(sinceRecorded time.Duration) Option {
	return func(o *options) { o.maxAge = sinceRecorded }
}

// WithDrainTimeout limits how long a manager that stops waits for pending
// events. Default: 8 s in total, below the 10 s of grace that GitOps-toolkit
// manifests give a pod; the manager's own graceful shutdown timeout (30 s) is the
// limit of all that it stops. It has no effect on Shutdown, whose context says how
// long. It must be at least 1 ms; otherwise it is an error.
func WithDrainTimeout(total time.Duration) Option {
	return func(o *options) { o.drainTimeout = total }
}

// WithJournal keeps pending events in a file, so that they survive the end of the
// process: an event that was pending for 100 ms when the process died is
// delivered by the next recorder with the same directory, controller and endpoint,
// before anything new about its object, with its own time and Idempotency-Key.
// What was being posted may arrive twice. A drain ends as soon as the endpoint is
// down: what is left has the outcome saved. Events that are delivered within
// 80 ms never touch the disk, and a call never waits for it. Default: no journal.
//
// The directory is made if it is missing (mode 0700; files 0600); use one that
// outlives what you want to survive: an emptyDir for the end of a container, a
// volume for that of a pod. Power loss is not covered. The file stays below about
// twice [WithQueueBytes]. A directory that cannot be used is an error, and so is a
// file that another recorder holds: a recorder with a journal must be shut down, and
// there is one for each controller and endpoint. Errors of the disk later on are
// counted and logged, and turn the journal off for a minute.
func WithJournal(dir string) Option {
	return func(o *options) { o.journalDir, o.journalSet = dir, true }
}

// WithMetricsRegisterer registers the metrics elsewhere. Default:
// controller-runtime's registry, which a manager serves. Recorders may share a
// registry; those with the same controller name share its numbers. nil is an
// error; a registry that nobody gathers keeps the metrics out of sight.
func WithMetricsRegisterer(registerer prometheus.Registerer) Option {
	return func(o *options) { o.registerer = registerer }
}

// WithCoreV1Recorder writes the Kubernetes events with a core/v1 recorder of your
// own, for example one with another correlator. Default: the manager's, or the one
// given to NewRecorderForScheme. nil is an error, and so is WithEventsV1Recorder
// together with it.
func WithCoreV1Recorder(recorder record.EventRecorder) Option {
	return func(o *options) { o.coreV1, o.coreV1Set = recorder, true }
}

// WithEventsV1Recorder writes the Kubernetes events through the events.k8s.io
// API, with the recorder that a manager's GetEventRecorder returns, instead of
// the wrapped core/v1 recorder. Default: the wrapped recorder. What
// events.k8s.io would refuse is mended first; see [EventsV1Recorder]. nil is an
// error, and so is a reporting controller that events.k8s.io does not take.
func WithEventsV1Recorder(recorder kubeevents.EventRecorder) Option {
	return func(o *options) { o.eventsV1, o.eventsV1Set = recorder, true }
}

// newOptions applies the options to the defaults and checks the result.
func newOptions(opts []Option) (*options, error) {
	o := &options{
		retryMax:      defaultRetryMax,
		retryWaitMin:  defaultRetryWaitMin,
		retryWaitMax:  defaultRetryWaitMax,
		retryAfterMax: defaultRetryAfter,
		concurrency:   defaultConcurrency,
		queueBytes:    defaultQueueBytes,
		maxAge:        defaultMaxAge,
		drainTimeout:  defaultDrainTimeout,
		registerer:    metrics.Registry,
	}
	var errs []error
	for i, option := range opts {
		if option == nil {
			errs = append(errs, fmt.Errorf("events: option %d: must not be nil", i+1))
			continue
		}
		option(o)
	}
	check := func(ok bool, rule, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("events: %s: %s", fmt.Sprintf(format, args...), rule))
		}
	}
	check(!o.clientSet || o.client != nil, "must not be nil", "WithHTTPClient(nil)")
	check(o.retryMax >= 0, "must not be negative", "WithRetryMax(%d)", o.retryMax)
	check(o.retryWaitMin >= minDuration && o.retryWaitMin <= o.retryWaitMax,
		"the minimum must be at least 1ms and not above the maximum", "WithRetryWait(%v, %v)", o.retryWaitMin, o.retryWaitMax)
	check(!o.timeoutSet || o.timeout >= minDuration, "must be at least 1ms", "WithTimeout(%v)", o.timeout)
	check(o.concurrency >= 1 && o.concurrency <= maxConcurrency,
		fmt.Sprintf("must be between 1 and %d", maxConcurrency), "WithConcurrency(%d)", o.concurrency)
	check(o.queueBytes >= minQueueBytes, "must be at least 1024", "WithQueueBytes(%d)", o.queueBytes)
	check(o.maxAge >= minDuration, "must be at least 1ms", "WithMaxAge(%v)", o.maxAge)
	check(o.drainTimeout >= minDuration, "must be at least 1ms", "WithDrainTimeout(%v)", o.drainTimeout)
	check(!o.journalSet || o.journalDir != "", "must not be empty", "WithJournal(%q)", o.journalDir)
	check(!isNil(o.registerer), "must not be nil", "WithMetricsRegisterer(nil)")
	check(!o.coreV1Set || !isNil(o.coreV1), "must not be nil", "WithCoreV1Recorder(nil)")
	check(!o.coreV1Set || !o.eventsV1Set, "must not be given together", "WithCoreV1Recorder and WithEventsV1Recorder")
	check(!o.eventsV1Set || !isNil(o.eventsV1), "must not be nil", "WithEventsV1Recorder(nil)")

	if !o.timeoutSet {
		o.timeout = defaultTimeout
		if o.client != nil && o.client.Timeout > 0 {
			o.timeout = o.client.Timeout
		}
	}
	return o, errors.Join(errs...)
}

// isNil reports whether an interface holds nothing, or a nil pointer, which
// would panic at its first use.
func isNil(v any) bool {
	if v == nil {
		return true
	}
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Func, reflect.Chan, reflect.Interface, reflect.Slice:
		return r.IsNil()
	}
	return false
}

// parseEndpoint checks the URL of the notification endpoint. Its error shows
// the URL without anything that may be secret.
func parseEndpoint(endpoint string) (*url.URL, error) {
	u, err := url.Parse(endpoint)
	fault := ""
	switch {
	case err != nil:
		fault = "it cannot be parsed"
	case strings.TrimSpace(endpoint) != endpoint:
		fault = "it begins or ends with a space"
	case !strings.Contains(endpoint, "://"):
		fault = "it does not begin with http:// or https://"
	case u.Scheme != "http" && u.Scheme != "https":
		fault = "its scheme must be http or https"
	case u.Hostname() == "":
		fault = "it has no host"
	case !validPort(u.Port()):
		fault = "its port must be between 1 and 65535"
	default:
		return u, nil
	}
	return nil, fmt.Errorf("events: notification endpoint %q: must be an absolute http or https URL: %s",
		redactEndpoint(endpoint), fault)
}

func validPort(port string) bool {
	if port == "" {
		return true
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n > 0
}

// redactEndpoint shows as much of a faulty URL as nobody would keep secret: the
// scheme and the host. Where it is not certain which part is which, nothing.
func redactEndpoint(endpoint string) string {
	const most = 100
	scheme, rest, found := strings.Cut(endpoint, "://")
	if !found {
		scheme, rest = "", endpoint
	} else {
		scheme += "://"
	}
	host, path, cut := cutAny(rest, `/\?#`)
	if strings.Contains(endpoint, "@") || strings.ContainsAny(scheme, "?#") || len(scheme)+len(host) > most {
		return redacted
	}
	if name, port, ok := strings.Cut(host, ":"); ok && strings.Trim(port, "0123456789:]") != "" {
		host = name + ":" + redacted // no port, so perhaps a password
	}
	if cut && path != "/" {
		path = "/" + redacted
	}
	return scheme + host + path
}
