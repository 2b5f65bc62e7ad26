package events_test

import (
	"errors"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes/scheme"
	kubeevents "k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/record"

	events "github.com/eventrecorder/events"
)

func construct(url, name string, opts ...events.Option) error {
	_, err := events.NewRecorderForScheme(scheme.Scheme, nil, logr.Discard(), url, name,
		append([]events.Option{events.WithMetricsRegisterer(prometheus.NewRegistry())}, opts...)...)
	return err
}

func TestABadOptionIsAnErrorThatNamesItItsValueAndTheRule(t *testing.T) {
	for _, test := range []struct {
		option events.Option
		want   string
	}{
		{nil, "events: option 2: must not be nil"},
		{events.WithJournal(""), `events: WithJournal(""): must not be empty`},
		{events.WithCoreV1Recorder(nil), "events: WithCoreV1Recorder(nil): must not be nil"},
		{events.WithCoreV1Recorder((*record.FakeRecorder)(nil)), "events: WithCoreV1Recorder(nil): must not be nil"},
		{events.WithHTTPClient(nil), "events: WithHTTPClient(nil): must not be nil"},
		{events.WithRetryMax(-1), "events: WithRetryMax(-1): must not be negative"},
		{events.WithRetryWait(0, time.Second), "events: WithRetryWait(0s, 1s): the minimum must be at least 1ms and not above the maximum"},
		{events.WithRetryWait(2*time.Second, time.Second), "events: WithRetryWait(2s, 1s): the minimum must be at least 1ms and not above the maximum"},
		{events.WithRetryWait(-1, -1), "events: WithRetryWait(-1ns, -1ns): the minimum must be at least 1ms and not above the maximum"},
		{events.WithRetryWait(1, 30), "events: WithRetryWait(1ns, 30ns): the minimum must be at least 1ms and not above the maximum"},
		{events.WithTimeout(5), "events: WithTimeout(5ns): must be at least 1ms"},
		{events.WithQueueBytes(16), "events: WithQueueBytes(16): must be at least 1024"},
		{events.WithTimeout(0), "events: WithTimeout(0s): must be at least 1ms"},
		{events.WithTimeout(-time.Second), "events: WithTimeout(-1s): must be at least 1ms"},
		{events.WithConcurrency(0), "events: WithConcurrency(0): must be between 1 and 256"},
		{events.WithConcurrency(257), "events: WithConcurrency(257): must be between 1 and 256"},
		{events.WithQueueBytes(0), "events: WithQueueBytes(0): must be at least 1024"},
		{events.WithMaxAge(0), "events: WithMaxAge(0s): must be at least 1ms"},
		{events.WithDrainTimeout(-1), "events: WithDrainTimeout(-1ns): must be at least 1ms"},
		{events.WithMetricsRegisterer(nil), "events: WithMetricsRegisterer(nil): must not be nil"},
		{events.WithMetricsRegisterer((*prometheus.Registry)(nil)), "events: WithMetricsRegisterer(nil): must not be nil"},
		{events.WithEventsV1Recorder(nil), "events: WithEventsV1Recorder(nil): must not be nil"},
		{events.WithEventsV1Recorder((*kubeevents.FakeRecorder)(nil)), "events: WithEventsV1Recorder(nil): must not be nil"},
	} {
		for _, url := range []string{"http://host/", ""} {
			if err := construct(url, "x", test.option); err == nil || err.Error() != test.want {
				t.Errorf("endpoint %q: error %v, want %q", url, err, test.want)
			}
		}
	}
}

func TestAllFaultsAreReportedTogether(t *testing.T) {
	err := construct("ftp://x/", "no good name", events.WithRetryMax(-1), nil, events.WithTimeout(-1),
		events.WithEventsV1Recorder(kubeevents.NewFakeRecorder(1)))
	for _, part := range []string{"WithRetryMax(-1)", "WithTimeout(-1ns)", `"ftp://x/"`, `reporting controller "no good name"`} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v does not speak of %s", err, part)
		}
	}
}

func TestExtremeButValidOptionsAreTaken(t *testing.T) {
	ms := time.Millisecond
	for name, opts := range map[string][]events.Option{
		"most": {events.WithRetryMax(math.MaxInt), events.WithRetryWait(ms, math.MaxInt64), events.WithTimeout(math.MaxInt64), events.WithConcurrency(256),
			events.WithQueueBytes(math.MaxInt), events.WithMaxAge(math.MaxInt64), events.WithDrainTimeout(math.MaxInt64), events.WithHTTPClient(&http.Client{})},
		"least": {events.WithRetryMax(0), events.WithRetryWait(ms, ms), events.WithTimeout(ms), events.WithConcurrency(1),
			events.WithQueueBytes(1024), events.WithMaxAge(ms), events.WithDrainTimeout(ms)},
	} {
		if err := construct("http://host/", "x", opts...); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAnEndpointMustBeAnAbsoluteHTTPURLWithAHost(t *testing.T) {
	for url, shown := range map[string]string{
		"localhost:9090":          `"localhost:9090"`,
		"ftp://x/":                `"ftp://x/"`,
		"http://":                 `"http://"`,
		"https:///path":           `"https:///[redacted]"`,
		"not a url":               `"not a url"`,
		"/path":                   `"/[redacted]"`,
		"http://:80":              `"http://:80"`,
		"http://host:0":           `"http://host:0"`,
		"http://host:65536/x":     `"http://host:65536/[redacted]"`,
		"http://host:port/":       `"http://host:[redacted]/"`,
		"http:host":               `"http:[redacted]"`,
		" http://host/":           `" http://host/"`,
		"http://ho st/":           `"http://ho st/"`,
		"http://[::1/":            `"http://[::1/"`,
		"unix:///var/run/x.sock":  `"unix:///[redacted]"`,
		"http://host/\x00":        `"http://host/[redacted]"`,
		"//host/path":             `"/[redacted]"`,
		"http://host/ ":           `"http://host/[redacted]"`,
		"http://host ":            `"http://host "`,
		"http://host/x\t":         `"http://host/[redacted]"`,
		"http://host/?q\u00a0":    `"http://host/[redacted]"`,
		"mailto:me@example.com":   `"[redacted]"`,
		"http://%zz/":             `"http://%zz/"`,
		strings.Repeat("x", 1000): `"[redacted]"`,
	} {
		err := construct(url, "x")
		if err == nil || !strings.Contains(err.Error(), "events: notification endpoint "+shown+": must be an absolute http or https URL: ") {
			t.Errorf("%q: error %v, want one that shows %s and the rule", url, err, shown)
		}
	}
	for _, url := range []string{
		"http://host", "HTTPS://host/", "http://host:1/path?query", "http://user:pass@host:65535/", "http://[::1]:8080/", "http://10.0.0.1/",
		"http://notification-controller.flux-system.svc.cluster.local./", "http://host:/",
	} {
		if err := construct(url, "x"); err != nil {
			t.Errorf("%q: %v", url, err)
		}
	}
}

func TestTheErrorAboutAnEndpointSaysWhatIsWrong(t *testing.T) {
	for url, want := range map[string]string{
		"http://[::1/":      "it cannot be parsed",
		" //host/":          "it begins or ends with a space",
		"http://host/ ":     "it begins or ends with a space",
		"localhost:9090":    "it does not begin with http:// or https://",
		"ftp://host/":       "its scheme must be http or https",
		"http://:80/":       "it has no host",
		"http://host:0/":    "its port must be between 1 and 65535",
		"http://host:65536": "its port must be between 1 and 65535",
	} {
		if err := construct(url, "x"); err == nil || !strings.HasSuffix(err.Error(), ": must be an absolute http or https URL: "+want) {
			t.Errorf("%q: error %v, want %q", url, err, want)
		}
	}
}

func TestTheErrorAboutAnEndpointShowsNoSecret(t *testing.T) {
	for _, url := range []string{
		"ftp://user:s3cret@host/s3cret?token=s3cret", "http://user:s3cret@/x", "http://user:s3cret@host:99999/",
		"http://user:s3/cret@host/", "http://user:s3?cret@host/s3", "http://user:s3#cret@host/", "user:s3cret@host:9090",
		"http://user:%zzs3cret@host/", "http://us@er:s3cret@host:bad/", "//user:s3cret@host", "ftp://host/path/s3cret",
		"http://user:s3cret", "user:s3cret", `http://host\s3cret`, "ftp://host?s3cret", "host/s3cret", "x?s3cret://y", "a@s3cret://host", "http://host:port/a@s3cret",
	} {
		err := construct(url, "x")
		if err == nil {
			t.Errorf("%q: no error", url)
			continue
		}
		for _, secret := range []string{"s3", "cret"} {
			if strings.Contains(strings.TrimPrefix(err.Error(), "events: "), secret) {
				t.Errorf("%q: the error shows a secret: %v", url, err)
			}
		}
	}
}

func TestARegistryThatHoldsOtherMetricsOfTheNameIsAnError(t *testing.T) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "event_recorder_pending_events"}))
	if err := construct("http://host/", "x", events.WithMetricsRegisterer(registry)); err == nil || !strings.Contains(err.Error(), "events: cannot register the metrics") {
		t.Errorf("error %v", err)
	}
	failing := failingRegisterer{}
	if err := construct("http://host/", "x", events.WithMetricsRegisterer(failing)); !errors.Is(err, errRegister) {
		t.Errorf("error %v, want that of the registerer", err)
	}
	// The same metrics from elsewhere: another copy of this package in the process.
	registry = prometheus.NewRegistry()
	for _, to := range []prometheus.Registerer{disguising{registry}, registry} {
		err := construct("http://host/", "x", events.WithMetricsRegisterer(to))
		if to == registry && (err == nil || !strings.Contains(err.Error(), "events: cannot register the metrics")) || to != registry && err != nil {
			t.Errorf("error %v", err)
		}
	}
}

// disguising registers collectors as such of another type.
type disguising struct{ *prometheus.Registry }

func (d disguising) Register(c prometheus.Collector) error {
	return d.Registry.Register(struct{ prometheus.Collector }{c})
}

var errRegister = errors.New("no more metrics")

type failingRegisterer struct{ prometheus.Registerer }

func (failingRegisterer) Register(prometheus.Collector) error { return errRegister }

func TestTheLastOfAnOptionGivenTwiceCounts(t *testing.T) {
	if err := construct("http://host/", "x", events.WithRetryMax(-1), events.WithRetryMax(1)); err != nil {
		t.Error(err)
	}
}
