package events

import (
	"fmt"
	"io"
	"net/http"
	"time"
)

// maxShownLanes is how many objects the debug page names.
const maxShownLanes = 100

// DebugHandler returns a handler that shows, as plain text, what the recorder is
// doing: whether the endpoint is up, and of each object with pending events the
// state, the number of events, and the age, attempts and strikes of the first. It is
// for a debug port: it shows names and reasons, but no messages, annotations or
// secrets. It shows at most 100 objects, those whose first event has waited longest.
// Building the page holds the lock of the queue for less than a millisecond.
func (r *EventRecorder) DebugHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if r.idle() || r.shared.delivery == nil {
			_, _ = io.WriteString(w, "no notification endpoint\n")
			return
		}
		d := r.shared.delivery
		s := d.queue.inspect()
		_, _ = fmt.Fprintf(w, "controller: %s\nendpoint: %s, %s\npending: %d events about %d objects, %d bytes\nworkers: %d of %d\n",
			d.controller, d.shownEndpoint(), s.endpoint, s.events, s.objects, s.bytes, s.workers, d.concurrency)
		if len(s.lanes) > 0 {
			_, _ = fmt.Fprintln(w, "\nSTATE    EVENTS       AGE  ATTEMPTS  STRIKES  OBJECT, REASON OF THE FIRST EVENT")
		}
		for _, l := range s.lanes {
			_, _ = fmt.Fprintf(w, "%-8s %6d %9s  %8d  %7.1f  %s %q/%q, %q\n",
				l.place, l.events, l.age.Round(time.Millisecond), l.attempts, l.strikes, l.kind, l.namespace, l.name, l.reason)
		}
	})
}

// inspection is what a queue holds at one moment.
type inspection struct {
	endpoint                        string
	events, objects, bytes, workers int
	lanes                           []laneInspection
}

type laneInspection struct {
	place                         string
	events, attempts              int
	strikes                       float64
	age                           time.Duration
	kind, namespace, name, reason string
}

var placeNames = [places]string{fresh: "ready", failed: "ready", waiting: "waiting", busy: "posting"}

// inspect copies what the debug page shows. The events of a lane are counted as far
// as it shows them.
func (q *queue) inspect() inspection {
	now := time.Now()
	q.mu.Lock()
	defer q.mu.Unlock()
	s := inspection{endpoint: "up", events: q.size, objects: len(q.lanes), bytes: q.bytes, workers: q.workers}
	if q.endpoint.down {
		s.endpoint = "down since " + q.endpoint.rowBegan.UTC().Format(time.RFC3339)
	}
	shown := make(map[*lane]int, maxShownLanes)
	for it := q.pending.front; it != nil; it = it.next {
		if i, ok := shown[it.lane]; ok {
			s.lanes[i].events++
			continue
		}
		if len(s.lanes) == maxShownLanes {
			continue
		}
		shown[it.lane] = len(s.lanes)
		s.lanes = append(s.lanes, laneInspection{placeNames[it.lane.place], 1, it.attempts, it.strikes, now.Sub(it.recorded),
			it.involved.Kind, it.involved.Namespace, it.involved.Name, it.reason})
	}
	return s
}
