package main

import (
	"context"
	"net/http"

	corev1 "k8s.io/api/core/v1"
)

// The connections that it takes to post events about one object to an endpoint
// that answers 429 with a short text, as notification-controller answers a
// duplicate. A client that leaves an answer unread cannot use the connection
// again.

// measureConnections fills the row about connections.
func measureConnections(r *report, s scale) error {
	row := r.row("connections opened for " + count(s.duplicates) + " duplicates (429)")
	opened := make(map[column][]int)
	for range s.runs() {
		for _, c := range []column{ours, fluxPeer, goroutine} {
			n, err := connectionsOf(c, s.duplicates)
			if err != nil {
				return err
			}
			opened[c] = append(opened[c], n)
		}
	}
	for c, n := range opened {
		row.set(c, "%s", count(median(n)))
	}
	return nil
}

func connectionsOf(c column, duplicates int) (opened int, err error) {
	server, err := serve(answer(http.StatusTooManyRequests))
	if err != nil {
		return 0, err
	}
	defer server.close()
	rec, err := newRecorder(c, server.url, nil, silent())
	if err != nil {
		return 0, err
	}
	defer rec.stop()
	object := pod("podinfo")
	for i := range duplicates {
		rec.AnnotatedEventf(object, annotations, corev1.EventTypeNormal, "Progressing", "Health check passed in %d ms", i)
	}
	err = rec.wait(context.Background())
	return int(server.connections.Load()), err
}
