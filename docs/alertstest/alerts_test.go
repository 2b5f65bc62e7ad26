package alertstest

import (
	"context"
	"fmt"
	"maps"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

const (
	// inAll is the limit of the whole test.
	inAll = 165 * time.Second

	// untilAllFire has room for an outage that is shown after 40 s at most.
	untilAllFire    = 75 * time.Second
	untilAllResolve = 30 * time.Second
)

// key names an alert of a controller.
type key struct{ alert, controller string }

func (k key) String() string { return k.alert + " of " + k.controller }

// history is what was seen of all alerts.
type history struct {
	pending, firing map[key]bool   // ever
	now             map[key]string // the present state
	faults          map[string]bool
}

// look asks Prometheus for the alerts of this moment.
func (h *history) look(ctx context.Context, s *server) error {
	alerts, err := s.alerts(ctx)
	if err != nil {
		return err
	}
	h.now = map[key]string{}
	for _, a := range alerts {
		k := key{a.Labels["alertname"], a.Labels["controller"]}
		h.now[k] = a.State
		switch a.State {
		case "pending":
			if h.firing[k] {
				break // it has ended, and begins again
			}
			h.pending[k] = true
		case "firing":
			h.firing[k] = true
		}
		if !strings.Contains(a.Annotations["summary"], k.controller) || a.Annotations["runbook_url"] == "" {
			h.faults[fmt.Sprintf("%v has the annotations %v", k, a.Annotations)] = true
		}
		if a.Labels["job"] != "controllers" || a.Labels["severity"] == "" {
			h.faults[fmt.Sprintf("%v has the labels %v", k, a.Labels)] = true
		}
	}
	return nil
}

func TestTheAlertsFireInPrometheus(t *testing.T) {
	if os.Getenv("EVENTS_REQUIRE_PROMETHEUS") == "" {
		t.Skip("it needs Prometheus and takes half a minute; `make alerts` runs it")
	}
	ctx, cancel := context.WithTimeout(t.Context(), inAll)
	defer cancel()

	// The program: one controller for each kind of trouble, all healthy yet.
	registry := prometheus.NewRegistry()
	var controllers []*controller
	dir := t.TempDir()
	for _, p := range provocations {
		c, err := newController(p, registry, dir)
		if err != nil {
			t.Fatal(err)
		}
		defer c.endpoint.Close()
		defer c.shutdown()
		controllers = append(controllers, c)
	}
	metrics := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	defer metrics.Close()

	rules, shortened := readRules(t)
	byName := map[string]rule{}
	for _, r := range rules {
		byName[r.name] = r
	}
	s := startPrometheus(ctx, t, shortened, metrics.Listener.Addr().String())

	// increase() does not see what a series begins with, so the losses must
	// come after a scrape.
	eventually(ctx, t, 20*time.Second, "all controllers are scraped twice", func() (bool, string) {
		n, err := s.value(ctx, `count(count_over_time(event_recorder_events_total{outcome="delivered"}[1m]) >= 2)`)
		return int(n) == len(controllers), fmt.Sprintf("%v controllers of %d, error %v", n, len(controllers), err)
	})
	h := &history{map[key]bool{}, map[key]bool{}, nil, map[string]bool{}}
	if err := h.look(ctx, s); err != nil || len(h.now) > 0 {
		t.Fatalf("before any trouble there are the alerts %v, error %v", h.now, err)
	}

	for _, c := range controllers {
		c.begin(c)
	}
	stop := tick(controllers)
	defer stop()
	eventually(ctx, t, untilAllFire, "every alert fires", func() (bool, string) {
		if err := h.look(ctx, s); err != nil {
			return false, err.Error()
		}
		var missing []string
		for _, c := range controllers {
			for _, alert := range c.alerts {
				if k := (key{alert, c.provocation.controller}); !h.firing[k] {
					missing = append(missing, fmt.Sprintf("%v (%q now)", k, h.now[k]))
				}
			}
		}
		return len(missing) == 0, "missing: " + strings.Join(missing, ", ")
	})

	for _, c := range controllers {
		if err := c.recover(); err != nil {
			t.Fatal(err)
		}
	}
	eventually(ctx, t, untilAllResolve, "every alert about a state is resolved", func() (bool, string) {
		if err := h.look(ctx, s); err != nil {
			return false, err.Error()
		}
		var left []string
		for k, state := range h.now {
			if byName[k.alert].counter == "" {
				left = append(left, fmt.Sprintf("%v is %s", k, state))
			}
		}
		return len(left) == 0, strings.Join(left, ", ")
	})

	// What is lost by now is alerted, and nothing else.
	stop()
	lost := losses(t, registry, rules)
	eventually(ctx, t, 10*time.Second, "losses and errors are alerted, all of them and no others", func() (bool, string) {
		if err := h.look(ctx, s); err != nil {
			return false, err.Error()
		}
		firing := map[key]bool{}
		for k, state := range h.now {
			if byName[k.alert].counter != "" && state == "firing" {
				firing[k] = true
			}
		}
		return maps.Equal(firing, lost), fmt.Sprintf("firing %v, want %v", firing, lost)
	})

	for k := range h.firing {
		if r := byName[k.alert]; r.waits != h.pending[k] {
			t.Errorf("%v has a \"for\": %v, was seen pending before it fired: %v", k, r.waits, h.pending[k])
		}
	}
	for _, seen := range []map[key]bool{h.pending, h.firing} {
		for k := range seen {
			if k.controller == healthy {
				t.Errorf("%v: it has no trouble", k)
			}
		}
	}
	for _, fault := range slices.Sorted(maps.Keys(h.faults)) {
		t.Error(fault)
	}
}

// tick lets the controllers record until stop is called.
func tick(controllers []*controller) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		ticker := time.NewTicker(tickEvery)
		defer ticker.Stop()
		for n := 0; ; n++ {
			for _, c := range controllers {
				if c.tick != nil {
					c.tick(c, n)
				}
			}
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}

// losses are the alerts that must fire for what the recorders have counted.
func losses(t *testing.T, registry *prometheus.Registry, rules []rule) map[key]bool {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	lost := map[key]bool{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			for _, r := range rules {
				if r.counts(f.GetName(), labels) && m.GetCounter().GetValue() > 0 {
					lost[key{r.name, labels["controller"]}] = true
				}
			}
		}
	}
	return lost
}
