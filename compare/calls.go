package main

import (
	"fmt"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/eventrecorder/events"
)

// The time of a recording call: one object, two annotations, one argument, and
// client-go's recorder with a real broadcaster behind it. Calls come in bursts,
// and the bursts of all recorders and all states of the endpoint take turns, so
// that whatever else the machine does meets all of them. What a burst leaves
// behind is ended while nothing is measured: it is the call that counts, and
// not who gets the few processors.

// measureCalls fills the rows about recording calls.
func measureCalls(r *report, s scale) error {
	m := callMeasurement{scale: s, kube: newKubernetesEvents(), samples: make(map[series][]time.Duration)}
	defer m.kube.broadcaster.Shutdown()
	states, err := m.endpoints()
	if err != nil {
		return err
	}
	defer m.close()

	blocked, err := m.blockedCalls(states)
	if err != nil {
		return err
	}
	if err := m.bursts(states); err != nil {
		return err
	}

	var medians []time.Duration // with room in the queue
	var full time.Duration
	added := func(state endpointState) time.Duration {
		return median(m.samples[series{ours, state.name}]) - median(m.samples[series{clientGo, states[0].name}])
	}
	for _, state := range states {
		row := r.row("recording call (median · 99.9th percentile), endpoint " + state.name)
		for _, c := range []column{ours, fluxPeer, goroutine, clientGo} {
			if samples := m.samples[series{c, state.name}]; len(samples) > 0 {
				row.set(c, "%s · %s", duration(median(samples)), duration(quantile(samples, 0.999)))
			}
		}
		if cell, ok := blocked[state.name]; ok {
			row.set(fluxPeer, "%s", cell)
		}
		if our := median(m.samples[series{ours, state.name}]); state.full {
			full = our
		} else {
			medians = append(medians, our)
		}
	}

	healthy := states[0].name
	ratio := float64(median(m.samples[series{fluxPeer, healthy}])) / float64(medians[0])
	r.goal(ratio >= 10, "recording call at least 10 times as fast as the peer's with a healthy endpoint", "%.0f times", ratio)
	r.goal(spread(medians) <= 1.15, "recording call independent of the endpoint's state within a factor of 1.15 (medians)", "%.2f", spread(medians))
	r.goal(spread(append(medians, full)) <= 1.3, "the same within 1.3 with a full queue, of which each call drops an event", "%.2f", spread(append(medians, full)))
	r.goal(added(states[0]) <= 700*time.Nanosecond, "recording call at most 0.7 µs longer than that of client-go's recorder alone", "%s", duration(added(states[0])))
	r.note("Recording calls: client-go's recorder is behind each of them, so its column is what of each call is not the notification. "+
		"The endpoints are on this machine: over a network the peer's calls are longer by the round trip. "+
		"The 99.9th percentile is that of the processors, which are also posting, receiving and collecting garbage: a call now and then waits for one. "+
		"Of the peer, %d calls were measured where it blocks, and %s where it does not.", m.runs(), count(len(m.samples[series{fluxPeer, healthy}])))
	return nil
}

// endpointState is an endpoint and what it does.
type endpointState struct {
	name    string
	handler func(http.ResponseWriter, *http.Request, []byte) // nil: nobody listens
	blocks  bool                                             // the peer, for too long to measure many calls
	full    bool                                             // our recorder's queue is full
	url     string
}

type series struct {
	column column
	state  string
}

type callMeasurement struct {
	scale
	kube    *kubernetesEvents
	servers []*server
	samples map[series][]time.Duration
	calls   int
}

// endpoints starts an endpoint for each state. The first is healthy.
func (m *callMeasurement) endpoints() ([]endpointState, error) {
	states := []endpointState{
		{name: "answers 202", handler: answer(http.StatusAccepted)},
		{name: "answers 429", handler: answer(http.StatusTooManyRequests)},
		{name: "answers 500", handler: answer(http.StatusInternalServerError), blocks: true},
		{name: "hangs", handler: hang, blocks: true},
		{name: "refuses connections", blocks: true},
		{name: "hangs, queue full", handler: hang, full: true},
	}
	for i := range states {
		if states[i].handler == nil {
			url, err := refusing()
			if err != nil {
				return nil, err
			}
			states[i].url = url
			continue
		}
		server, err := serve(states[i].handler)
		if err != nil {
			return nil, err
		}
		m.servers = append(m.servers, server)
		states[i].url = server.url
	}
	return states, nil
}

func (m *callMeasurement) close() {
	for _, s := range m.servers {
		s.close()
	}
}

// blockedCalls makes some calls of the peer in each state in which it blocks, all
// at the same time: they wait and do nothing.
func (m *callMeasurement) blockedCalls(states []endpointState) (map[string]string, error) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	times := make(map[string][]time.Duration)
	for _, state := range states {
		if !state.blocks {
			continue
		}
		for range m.runs() {
			// Its Kubernetes event goes nowhere: nobody waits for this one.
			r, err := newRecorder(fluxPeer, state.url, nil, silent())
			if err != nil {
				return nil, err
			}
			wg.Go(func() {
				took, _ := within(m.budget, func() {
					r.AnnotatedEventf(pod("podinfo"), annotations, corev1.EventTypeNormal, "Progressing", "Health check passed in %d ms", 1)
				})
				mu.Lock()
				defer mu.Unlock()
				times[state.name] = append(times[state.name], took)
			})
		}
	}
	wg.Wait()
	cells := make(map[string]string)
	for name, took := range times {
		more := ""
		if median(took) >= m.budget {
			more = "> "
		}
		cells[name] = fmt.Sprintf("%s%s (%d calls)", more, duration(median(took)), len(took))
	}
	return cells, nil
}

// turn is what takes its turn in each round.
type turn struct {
	series
	url   string
	calls int
	kept  recorder // if it is not made anew for each turn
}

// turns returns what does not block.
func (m *callMeasurement) turns(states []endpointState) (all []turn, err error) {
	healthy := states[0]
	all = append(all, turn{series: series{clientGo, healthy.name}, calls: m.callBurst})
	for _, state := range states {
		if state.full {
			// Some 2,000 events fill it, and 4,000 are recorded.
			r, err := newRecorder(ours, state.url, m.kube, silent(), events.WithQueueBytes(1<<20))
			if err != nil {
				return nil, err
			}
			for range 40 {
				m.burst(r, 100)
			}
			all = append(all, turn{series: series{ours, state.name}, calls: m.callBurst, kept: r})
			continue
		}
		for _, c := range []column{ours, goroutine} {
			all = append(all, turn{series: series{c, state.name}, url: state.url, calls: m.callBurst})
		}
		if state.blocks {
			continue
		}
		r, err := newRecorder(fluxPeer, state.url, m.kube, silent())
		if err != nil {
			return nil, err
		}
		calls := m.peerBurst
		if state.name != healthy.name {
			// It leaves the answer unread, so that a 429 costs it a
			// connection for 5 s: not too many at a time.
			calls = max(calls/4, 1)
		}
		all = append(all, turn{series: series{fluxPeer, state.name}, calls: calls, kept: r})
	}
	return all, nil
}

// bursts measures what does not block.
func (m *callMeasurement) bursts(states []endpointState) error {
	turns, err := m.turns(states)
	if err != nil {
		return err
	}
	for round := range m.callRounds {
		for i := range turns {
			t := turns[(i+round)%len(turns)]
			r := t.kept
			if r == nil {
				if r, err = newRecorder(t.column, t.url, m.kube, silent()); err != nil {
					return err
				}
			}
			m.samples[t.series] = append(m.samples[t.series], m.burst(r, t.calls)...)
			if t.kept == nil {
				r.stop()
			}
		}
	}
	for _, t := range turns {
		if t.kept != nil {
			t.kept.stop()
		}
	}
	return nil
}

// burst measures calls, each about something new, and waits for their Kubernetes
// events.
func (m *callMeasurement) burst(r recorder, calls int) []time.Duration {
	object := pod("podinfo-7d9c5b8f6d-abcde")
	took := make([]time.Duration, calls)
	for i := range took {
		m.calls++
		began := time.Now()
		r.AnnotatedEventf(object, annotations, corev1.EventTypeNormal, "Progressing", "Health check passed in %d ms", m.calls)
		took[i] = time.Since(began)
	}
	m.kube.await(calls)
	return took
}
