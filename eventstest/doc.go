// Package eventstest has what a test needs to see the events that a controller
// posts: it is to package events what net/http/httptest is to net/http.
//
// An [Endpoint] listens on a local port and answers as Flux's
// notification-controller does. It keeps what it received, a test can wait for
// that without sleeping, and it can be told to fail, to hang or to go down.
//
//	ep := eventstest.NewEndpoint()
//	defer ep.Close()
//
//	recorder, err := events.NewRecorderForScheme(scheme, record.NewFakeRecorder(10),
//		logr.Discard(), ep.URL(), "my-controller")
//	// ...
//	defer recorder.Shutdown(ctx) // before the endpoint goes
//	recorder.Event(object, corev1.EventTypeNormal, "Ready", "all is well")
//
//	taken, err := ep.Wait(ctx, 1)
//	// taken[0].Message == "all is well"
//
// # Trouble
//
// A [Behavior] takes the place of the normal answer, for all requests or for
// the next ones only:
//
//	ep.Behave(eventstest.Status(http.StatusServiceUnavailable))
//	ep.BehaveNext(eventstest.Reset(), eventstest.Delay(10*time.Second), nil)
//	ep.Behave(nil) // back to normal
//
// [Endpoint.Down] makes the port refuse connections until [Endpoint.Up], and
// [Endpoint.Forget] is the restart of a pod, which remembers no duplicates.
//
// # Virtual time
//
// A [Transport] is the same without a socket, for tests in a bubble of
// testing/synctest: an hour of outage takes no time there.
//
//	synctest.Test(t, func(t *testing.T) {
//		tr := eventstest.NewTransport()
//		recorder, err := events.NewRecorderForScheme(scheme, record.NewFakeRecorder(10),
//			logr.Discard(), tr.URL(), "my-controller", events.WithHTTPClient(tr.Client()))
//		// ...
//	})
//
// # What notification-controller answers
//
// Path, method and content type do not matter.
//
//   - 202, no body: the event is taken, with one exception below.
//   - 429, "Too Many Requests": it is a duplicate.
//   - 400, no body: the body is not one JSON value that decodes into an event.
//     An empty body, a byte order mark, trailing data and an empty timestamp are
//     such faults; unknown and missing fields are not.
//   - 413, no body: the body is larger than 3 MiB.
//
// 202 and 429 carry X-RateLimit-Limit, X-RateLimit-Remaining and
// X-RateLimit-Reset; 429 adds Retry-After, which is an HTTP date.
//
// Two events are duplicates if name, namespace and kind of their involved
// objects, their messages, and their metadata <group>/originRevision,
// <group>/revision and <group>/token are equal, where <group> is the API group
// of the involved object. Nothing else counts: not severity, reason, API version
// or time.
//
// Of duplicates, one passes in each tick of 5 minutes ([WithWindow]). The ticks
// begin with the first event that has the key and do not move afterwards: after
// events at 0:00 and 0:07, a third passes at 0:10 already.
//
// An event is remembered before it is handled. Then the handler looks up alerts,
// providers and secrets, for which it may have to ask the API server. It does so
// on the context of the request, and has 15 seconds. So it can lose an event
// that it remembers, in two ways:
//
//   - The client gives up before the answer. That ends the handler, nobody is
//     notified, and the retry is answered 429 until the tick is over.
//   - The 15 seconds are over. Nobody is notified, and the answer is 202.
//
// [Delay] makes the endpoint slow, and [Endpoint.Events] does not have what was
// lost. A client should wait for more than 15 seconds. If it has given up once, a
// 429 afterwards does not tell it whether the event was taken or lost.
//
// Headers may have 256 KiB and may take 10 seconds to arrive, a whole request 30
// seconds. Idle connections are closed after 30 seconds.
package eventstest
