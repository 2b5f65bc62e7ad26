// Package events records Kubernetes events and posts the same events to a
// notification endpoint, such as Flux's notification-controller, from the
// background: a reconcile loop never waits for the endpoint.
//
// # Quick start
//
// A controller makes one recorder and uses it where it would use a
// record.EventRecorder:
//
//	recorder, err := events.NewRecorder(mgr, ctrl.Log,
//		"http://notification-controller.flux-system.svc.cluster.local./", "my-controller")
//	// ...
//	recorder.AnnotatedEventf(obj, map[string]string{"example.com/revision": revision},
//		corev1.EventTypeNormal, "ReconciliationSucceeded", "Applied revision %s", revision)
//
// [NewRecorder] wraps the manager's recorder and is drained when the manager
// stops. [NewRecorderForScheme] wraps any recorder and is shut down by hand.
// [EventRecorder.EventsV1] is the same recorder with the methods of the
// events.k8s.io API.
//
// # Guarantees
//
//   - Recording never waits for the endpoint, whatever that does.
//   - Events about one object arrive in the order in which they were recorded,
//     retries included. Different objects do not wait for each other, unless all
//     eight workers are busy.
//   - 429 is the endpoint's word for "I have this event already". It is final, on
//     any attempt, and no error.
//   - While the endpoint does not answer, events are kept, for up to an hour, and
//     delivered when it is back.
//   - Memory, goroutines and connections of a recorder are bounded.
//   - Every event meant for the endpoint ends in exactly one counted outcome, and
//     at every scrape what was recorded is what has an outcome and what is pending.
//   - No goroutine of a recorder exists before the first event or after the last
//     one, but for the one with which NewRecorder waits for the manager to stop.
//     Idle connections are closed after 20 s.
//   - No input panics: not a nil recorder, object, logger or wrapped recorder, and
//     no call after the shutdown.
//
// What is not guaranteed: events are held in memory, so a crash loses those that
// are pending; and an event may arrive twice if the endpoint took it but its
// answer was lost, unless it then answers 429.
//
// # What is posted
//
// A recording call makes a reference to the object, formats the message once,
// writes the Kubernetes event through the wrapped recorder and queues a copy for
// the endpoint. An [Event] is the JSON that arrives there, byte for byte what
// notification-controller's own type marshals to. Events of type Trace are
// written to Kubernetes as Normal and not posted. The recorder adds nothing to
// the message.
//
// # The queue
//
// Each object (kind, API group, namespace, name and UID) has a lane, first in,
// first out. A worker takes the lane that has waited longest, posts its first
// event, and puts the lane back at the end. There are at most eight workers
// ([WithConcurrency]). A worker stays with its event through the waits between
// attempts, so eight objects whose posts fail can make the others wait for up to
// the length of a delivery: 15 s, 40 s if each attempt hangs, or two minutes if a
// 503 asks for long waits with Retry-After.
//
// An event that says the same as the last one waiting in its lane, in all but
// time and resource version, is folded into that (outcome coalesced): in an
// outage an object that repeats itself costs one entry. If the queue is full
// ([WithQueueBytes]), the oldest waiting event of the same object is dropped,
// else the oldest of all (overflow). An event older than an hour ([WithMaxAge])
// is dropped when its turn comes (expired).
//
// # Attempts and outcomes
//
// A delivery is up to five attempts ([WithRetryMax]) of at most 5 s each
// ([WithTimeout]), with waits of up to 1, 2, 4 and 8 s between them
// ([WithRetryWait], [Backoff]); see [CheckRetry] for what is retried. Then:
//
//	2xx                                        delivered
//	429, on any attempt                        duplicate
//	other 4xx, 501, a bad certificate, and     rejected, after one attempt
//	3xx unless it keeps the POST (307, 308)
//	other 5xx on the last attempt              exhausted
//	502, 503, 504 or no answer on the last     kept: the event stays at the head of
//	                                           its lane and is tried again
//
// An outage is noticed, logged and shown in the metrics once a delivery has used
// up its attempts: after 8 to 15 s if connections are refused, 33 to 40 s if the
// endpoint hangs. When the endpoint is back, a worker finds out at the end of the
// wait that it is in: after 8 s at most, 13 s if attempts hung, 30 s if a 503 asked
// for that with Retry-After.
//
// An event whose attempts get no answer while the endpoint is there for others is
// exhausted too: if another event was taken up and answered after its last but one
// attempt and in the second before the last ([WithRetryWait]'s minimum), or shortly
// before its delivery for the third time. Then it is the event that fails and not
// the endpoint. So an endpoint that comes and goes can exhaust an event now and
// then, if it is there for less than a wait and an attempt take, 13 s at
// most. Events for which no reference can be made, or none with a kind and a name,
// are invalid, and those left when a shutdown ends are counted as shutdown.
//
// # Stopping
//
// [EventRecorder.Shutdown] takes no more events, waits for those pending, and at
// its deadline counts and reports what is left. A recorder made by NewRecorder
// does that by itself, after the manager has stopped the reconcilers, for at most
// 10 s ([WithDrainTimeout]): events recorded up to a reconciler's last line are
// delivered. [EventRecorder.Flush] waits for what was recorded before it, for
// tests and for checkpoints.
//
// # Metrics
//
// In controller-runtime's registry ([WithMetricsRegisterer]), labelled
// controller:
//
//	event_recorder_recorded_total                    events meant for the endpoint
//	event_recorder_events_total{outcome}             what became of them
//	event_recorder_pending_events                    those without an outcome yet
//	event_recorder_pending_bytes                     the memory they hold
//	event_recorder_oldest_pending_age_seconds        the age of the oldest
//	event_recorder_attempts_total{code}              posts, by status code or "error"
//	event_recorder_attempt_duration_seconds          how long they took
//	event_recorder_endpoint_up                       0 in an outage, else 1
//
// # Logs
//
// One error line when an outage begins and one info line when it ends. Of lost
// events the first of each outcome at once, with object, status and cause, and
// then at most one line a minute. Verbosity 1 has duplicates, verbosity 2 every
// recorded event. No line shows credentials, path or query of the endpoint's URL,
// unless the controller put them into the event itself, or the endpoint's answer
// repeats a part of them in a form of its own.
//
// # Testing
//
// Package eventstest has an endpoint for the tests of a controller. It answers as
// notification-controller does, can be told to fail, and needs no sleeping.
package events
