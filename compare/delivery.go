package main

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/eventrecorder/events"
)

// The rate of delivery to a healthy endpoint with 1, 8 and 64 objects in
// parallel: to one that costs next to nothing, and to one that takes a little
// time, as those do that are not on this machine. The limit is a loop that posts
// the same bodies, made beforehand, over the same number of connections and does
// nothing else. This library's events are recorded beforehand, too, but not yet
// encoded: the endpoint holds the first request of each connection until
// everything is in the queue, and the time is from then to the last event.
//
// The runs are short and take turns, and what counts is the median of the ratios
// of neighbours: of their rates, and of the processor time that this process, so
// clients and endpoint, has used for them. Other work on the machine takes
// processors away from one of two neighbours, but hardly changes how much of them
// each one uses.

// measureDelivery fills the rows about the rate of delivery.
func measureDelivery(r *report, s scale) error {
	for _, latency := range []time.Duration{0, s.answerTime} {
		for _, parallel := range []int{1, 8, 64} {
			d := delivery{parallel: parallel, latency: latency}
			if d.events = max(s.deliveryEvents*min(parallel, 2), parallel); latency > 0 {
				d.events = parallel * max(int(s.deliveryTime/latency), 1)
			}
			if err := measureDeliveryOf(r, s, d); err != nil {
				return err
			}
		}
	}
	r.note("Delivery: endpoint and clients share the processors of one machine, so the rates are for comparison only. " +
		"Against an endpoint that answers at once, the ratio is one of processor time: what JSON, retries, deadlines and metrics add to a bare post. " +
		"The ratio by processor time is that of what both used, the endpoint included; other work on the machine disturbs it less. " +
		"The peer is called by one goroutine for each object, and the time of its calls counts.")
	return nil
}

// delivery is what is delivered in one run.
type delivery struct {
	parallel int // objects, and so connections
	events   int
	latency  time.Duration // of the endpoint
}

func (d delivery) String() string {
	endpoint := "endpoint answers at once"
	if d.latency > 0 {
		endpoint = fmt.Sprintf("endpoint takes %v", d.latency)
	}
	if d.parallel == 1 {
		return endpoint + ", 1 object"
	}
	return endpoint + ", " + countObjects(d.parallel) + " in parallel"
}

func measureDeliveryOf(r *report, s scale, d delivery) error {
	var bodies [][]byte
	if _, err := d.ours(&bodies); err != nil {
		return err
	}
	var ourRates, plainRates, peerRates, ourCosts, plainCosts, ratios, costs []float64
	for pair := range s.deliveryPairs {
		runs := []func() error{
			func() error {
				run, err := d.ours(nil)
				ourRates, ourCosts = append(ourRates, run.rate), append(ourCosts, run.cost)
				return err
			},
			func() error {
				run, err := d.plain(bodies, extras{}.poster)
				plainRates, plainCosts = append(plainRates, run.rate), append(plainCosts, run.cost)
				return err
			},
		}
		if pair%2 == 1 {
			slices.Reverse(runs)
		}
		for _, run := range runs {
			if err := run(); err != nil {
				return err
			}
		}
		ratios = append(ratios, ourRates[pair]/plainRates[pair])
		costs = append(costs, plainCosts[pair]/ourCosts[pair])
		if pair%(max(s.deliveryPairs/minRuns, 1)) == 0 { // the peer leaves connections behind: not too many
			rate, err := d.peer()
			if err != nil {
				return err
			}
			peerRates = append(peerRates, rate)
		}
	}
	ratio, cost := median(ratios), median(costs)
	row := r.row("events delivered per second, " + d.String())
	row.set(ours, "%s (%.2f of the loop; %.2f by processor time)", count(int(median(ourRates))), ratio, cost)
	row.set(fluxPeer, "%s", count(int(median(peerRates))))
	row.set(plainLoop, "%s", count(int(median(plainRates))))
	limit := 0.95
	if d.latency > 0 {
		limit = 0.98
	}
	show := func(x float64) string { return fmt.Sprintf("%.2f", x) }
	r.goal(ratio >= limit, fmt.Sprintf("delivery at %.2f of the plain loop's rate or more, %v", limit, d),
		"%s of %d pairs; by processor time %s", middle(ratios, show), len(ratios), middle(costs, show))
	return nil
}

// rates is what came of a run: events per second, and processor time for each.
type rates struct{ rate, cost float64 }

// gate is an endpoint that answers nobody until it is opened.
type gate struct {
	*server
	held   chan struct{} // closed when as many requests wait as can
	opened chan struct{}
	done   chan struct{} // closed when all events were answered
}

// newGate makes the gate for a run. With bodies it keeps what it receives.
func (d delivery) newGate(bodies *[][]byte) (*gate, error) {
	g := &gate{held: make(chan struct{}), opened: make(chan struct{}), done: make(chan struct{})}
	var waiting, left atomic.Int64
	left.Store(int64(d.events))
	var mu sync.Mutex
	var err error
	g.server, err = serve(func(w http.ResponseWriter, _ *http.Request, body []byte) {
		if bodies != nil {
			mu.Lock()
			*bodies = append(*bodies, slices.Clone(body))
			mu.Unlock()
		}
		if waiting.Add(1) == int64(d.parallel) {
			close(g.held)
		}
		<-g.opened
		if d.latency > 0 {
			time.Sleep(d.latency)
		}
		w.WriteHeader(http.StatusAccepted)
		if left.Add(-1) == 0 {
			close(g.done)
		}
	})
	return g, err
}

// open lets all pass and returns what that took.
func (g *gate) open(events int) rates {
	<-g.held
	runtime.GC() // none owes anything to the run before
	began, used := time.Now(), processorTime()
	close(g.opened)
	<-g.done
	took, work := time.Since(began), processorTime()-used
	return rates{rate: float64(events) / took.Seconds(), cost: max(work, time.Microsecond).Seconds() / float64(events)}
}

// ours delivers with this library.
func (d delivery) ours(bodies *[][]byte) (rates, error) {
	g, err := d.newGate(bodies)
	if err != nil {
		return rates{}, err
	}
	defer g.close()
	r, err := newRecorder(ours, g.url, nil, silent(), events.WithConcurrency(d.parallel), events.WithQueueBytes(256<<20))
	if err != nil {
		return rates{}, err
	}
	defer r.stop()
	recordAll(r, d.parallel, d.events)
	return g.open(d.events), r.wait(context.Background())
}

// recordAll records events about so many objects in turn.
func recordAll(r recorder, objects, total int) {
	pods := make([]*corev1.Pod, objects)
	for i := range pods {
		pods[i] = pod("podinfo-" + count(i))
	}
	for i := range total {
		r.AnnotatedEventf(pods[i%objects], annotations, corev1.EventTypeNormal, "Progressing", "Health check passed in %d ms", i)
	}
}

// plain delivers with the plain loop. Each worker has a poster of its own.
func (d delivery) plain(bodies [][]byte, newPoster func(*http.Client, string) (post func([]byte) error, release func())) (rates, error) {
	g, err := d.newGate(nil)
	if err != nil {
		return rates{}, err
	}
	defer g.close()
	transport := &http.Transport{MaxIdleConnsPerHost: d.parallel}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}

	failed := make(chan error, d.parallel)
	var wg sync.WaitGroup
	for worker := range d.parallel {
		wg.Go(func() {
			post, release := newPoster(client, g.url)
			defer release()
			for i := worker; i < len(bodies); i += d.parallel {
				if err := post(bodies[i]); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	run := g.open(d.events)
	wg.Wait()
	select {
	case err = <-failed:
	default:
	}
	return run, err
}

// peer returns the rate of the peer, called by a goroutine for each object.
func (d delivery) peer() (rate float64, err error) {
	s, err := serve(func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		if d.latency > 0 {
			time.Sleep(d.latency)
		}
		w.WriteHeader(http.StatusAccepted)
	})
	if err != nil {
		return 0, err
	}
	defer s.close()
	r, err := newRecorder(fluxPeer, s.url, nil, silent())
	if err != nil {
		return 0, err
	}
	each := max(d.events/4/d.parallel, 1)
	var callers sync.WaitGroup
	runtime.GC()
	began := time.Now()
	for caller := range d.parallel {
		callers.Go(func() {
			object := pod("podinfo-" + count(caller))
			for i := range each {
				r.AnnotatedEventf(object, annotations, corev1.EventTypeNormal, "Progressing", "Health check passed in %d ms", i)
			}
		})
	}
	callers.Wait()
	return float64(each*d.parallel) / time.Since(began).Seconds(), nil
}
