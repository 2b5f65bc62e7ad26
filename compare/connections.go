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
	for _, c := range []column{ours, fluxPeer, goroutine} {
		server, err := serve(answer(http.StatusTooManyRequests))
		if err != nil {
			return err
		}
		defer server.close()
		rec, err := newRecorder(c, server.url, nil, silent())
		if err != nil {
			return err
		}
		defer rec.stop()
		object := pod("podinfo")
		for i := range s.duplicates {
			rec.AnnotatedEventf(object, annotations, corev1.EventTypeNormal, "Progressing", "Health check passed in %d ms", i)
		}
		if err := rec.wait(context.Background()); err != nil {
			return err
		}
		row.set(c, "%s", count(int(server.connections.Load())))
	}
	return nil
}
