package alertstest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/eventrecorder/events"
	"github.com/eventrecorder/events/eventstest"
)

// provocation is a controller in trouble, and the alerts that must fire for it.
// Others may fire too: an endpoint that is down is unreachable in each case.
type provocation struct {
	controller string
	alerts     []string
	options    []events.Option
	journaled  bool // has a journal, in a directory of its own

	begin func(*controller)      // once
	tick  func(*controller, int) // then, every tickEvery, with 0, 1, 2, …
}

const (
	tickEvery = 50 * time.Millisecond

	// healthy is the controller for which no alert may fire.
	healthy = "healthy"

	// smallQueue and shortBacklog take the place of 16 MiB and half an hour.
	smallQueue   = 64 << 10
	shortBacklog = 3 // seconds
)

// provocations has each alert of docs/alerts.yaml exactly once.
var provocations = []provocation{
	{
		controller: "outage",
		alerts:     []string{"EventRecorderEndpointUnreachable", "EventRecorderBacklogOld"},
		begin:      func(c *controller) { c.endpoint.Down() },
		tick:       sayEachSecond,
	},
	{
		controller: "full",
		alerts:     []string{"EventRecorderQueueNearlyFull", "EventRecorderLossOverflow"},
		options:    []events.Option{events.WithQueueBytes(smallQueue)},
		begin:      func(c *controller) { c.endpoint.Down() },
		tick: func(c *controller, n int) {
			c.say(n%5, fmt.Sprint(strings.Repeat("long ", 200), n))
		},
	},
	{
		controller: "rejected",
		alerts:     []string{"EventRecorderLossRejected"},
		begin: func(c *controller) {
			c.endpoint.Behave(eventstest.Status(http.StatusForbidden))
			c.say(0, "not for you")
		},
	},
	{
		controller: "exhausted",
		alerts:     []string{"EventRecorderLossExhausted"},
		begin: func(c *controller) {
			c.endpoint.Behave(func(w http.ResponseWriter, r *http.Request, normal http.Handler) {
				if body, _ := io.ReadAll(r.Body); strings.Contains(string(body), "poison") {
					w.WriteHeader(http.StatusInternalServerError)
					return
				}
				w.WriteHeader(http.StatusAccepted)
			})
			c.say(0, "poison")
		},
		tick: func(c *controller, n int) { c.say(1+n%4, fmt.Sprint("wholesome ", n)) },
	},
	{
		controller: "expired",
		alerts:     []string{"EventRecorderLossExpired"},
		options:    []events.Option{events.WithMaxAge(time.Second)},
		begin: func(c *controller) {
			c.endpoint.Down()
			for object := range 4 {
				c.say(object, "soon of no interest")
			}
		},
	},
	{
		controller: "invalid",
		alerts:     []string{"EventRecorderLossInvalid"},
		begin:      func(c *controller) { c.Event(nil, corev1.EventTypeNormal, "Testing", "about nothing") },
	},
	{
		controller: "shutdown",
		alerts:     []string{"EventRecorderLossShutdown"},
		begin: func(c *controller) {
			c.endpoint.Down()
			c.say(0, "too late")
			c.shutdown()
		},
	},
	{
		// The answer to the first attempt is lost, and the endpoint says "duplicate"
		// to the second one.
		controller: "unconfirmed",
		alerts:     []string{"EventRecorderLossUnconfirmed"},
		begin: func(c *controller) {
			c.endpoint.BehaveNext(eventstest.Reset(), eventstest.Status(http.StatusTooManyRequests))
			c.say(0, "perhaps")
		},
	},
	{
		// The journal is removed while events are pending.
		controller: "journaled",
		alerts:     []string{"EventRecorderJournalFails"},
		journaled:  true,
		begin: func(c *controller) {
			c.endpoint.Down()
			_ = os.RemoveAll(c.dir)
			c.say(0, "nowhere to write it")
		},
	},
	{
		controller: healthy,
		begin:      func(*controller) {},
		tick:       sayEachSecond,
	},
}

// sayEachSecond records an event a second, about five objects in turn.
func sayEachSecond(c *controller, n int) {
	if everySecond := int(time.Second / tickEvery); n%everySecond == 0 {
		n /= everySecond
		c.say(n%5, fmt.Sprint("event ", n))
	}
}

// controller is a recorder and the endpoint that it posts to.
type controller struct {
	provocation
	*events.EventRecorder
	endpoint *eventstest.Endpoint
	dir      string // of the journal
}

// newController makes the controller of a provocation. It has no trouble yet.
// A journal is below dir.
func newController(p provocation, registry *prometheus.Registry, dir string) (*controller, error) {
	endpoint := eventstest.NewEndpoint()
	dir = filepath.Join(dir, p.controller)
	options := append([]events.Option{
		events.WithMetricsRegisterer(registry),
		events.WithRetryWait(20*time.Millisecond, 200*time.Millisecond),
		events.WithTimeout(2 * time.Second),
	}, p.options...)
	if p.journaled {
		options = append(options, events.WithJournal(dir))
	}
	recorder, err := events.NewRecorderForScheme(scheme.Scheme, nil, logr.Discard(), endpoint.URL(), p.controller, options...)
	if err != nil {
		endpoint.Close()
		return nil, err
	}
	return &controller{p, recorder, endpoint, dir}, nil
}

// say records an event about one of the controller's objects.
func (c *controller) say(object int, message string) {
	name := fmt.Sprint("object-", object)
	c.Event(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}},
		corev1.EventTypeNormal, "Testing", message)
}

// recover ends the trouble of the endpoint.
func (c *controller) recover() error {
	c.endpoint.Behave(nil)
	return c.endpoint.Up()
}

// shutdown ends the recorder without waiting for what is pending.
func (c *controller) shutdown() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = c.Shutdown(ctx)
}
