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
//	recorder.AnnotatedEventf(obj, map[string]string{"kustomize.toolkit.fluxcd.io/revision": revision},
//		corev1.EventTypeNormal, "ReconciliationSucceeded", "Applied revision %s", revision)
//
// [NewRecorder] wraps the manager's recorder and is drained when the manager
// stops. [NewRecorderForScheme] wraps any recorder and is shut down by hand.
// [EventRecorder.EventsV1] is the same recorder with the methods of the
// events.k8s.io API.
//
// Less formally: you call it like any event recorder, and the call is over in a
// microsecond or two. Behind it every object has a queue of its own. The events
// of an object go out one by one, in order, and no object waits for another. If
// the endpoint is away, events are buffered and go out when it is back. If one
// event cannot be delivered while others can, that one is given up. You find each
// of them in a metric, and each loss in the log.
//
// # Guarantees
//
//  1. Recording never waits for the endpoint, whatever that does.
//  2. Events about one object arrive in the order in which they were recorded,
//     retries included. Different objects do not wait for each other, however many
//     of them fail.
//  3. 429 is the endpoint's word for "I have this event already". It is final, on
//     any attempt, and no error.
//  4. While the endpoint serves nobody, or only some of the attempts, events are
//     buffered for up to an hour and delivered when it can accept them. An event is
//     given up only if the endpoint serves others and, again and again, not it; or,
//     with one to three objects, if it answers 500 and the like to all of them.
//  5. Memory, goroutines and connections of a recorder are bounded.
//  6. Every event meant for the endpoint ends in exactly one counted outcome. At
//     every scrape, what was recorded is what has an outcome and what is pending.
//  7. A manager that stops delivers what reconcilers recorded up to their last
//     line. With a journal, what is pending survives the process.
//  8. No goroutine of a recorder exists before the first event or after the last
//     one, but for the one with which NewRecorder waits for the manager to stop.
//     Idle connections are closed after 20 s.
//  9. No input panics: not a nil recorder, object, logger or wrapped recorder, and
//     no call after the shutdown. A panic in your transport, logger or wrapped
//     recorder is not caught.
//
// Not guaranteed: an event may arrive twice if the endpoint accepted it but its
// answer was lost, unless it then answers 429. Order is that of answered attempts: a
// server may handle an attempt that was cut off after the next one. Without
// [WithJournal], a crash loses what is pending.
//
// # What is posted
//
// A recording call makes a reference to the object, formats the message once,
// writes the Kubernetes event through the wrapped recorder and queues a copy for
// the endpoint. An [Event] is the JSON that arrives there, byte for byte what
// notification-controller's own type marshals to. The header Idempotency-Key is
// the same on every attempt of an event. Events of type Trace are written to
// Kubernetes as Normal and not posted; an unknown type counts as Normal. The
// recorder adds nothing to the message.
//
// # The queue
//
// Each object (kind, API group, namespace, name and UID) has a queue of its own,
// here called a lane, first in, first out. The first event of a lane stays there
// until it has an outcome. A worker takes the lane that has been ready longest,
// makes one attempt, and gives the lane back: ready again, or waiting until the
// next attempt. A wait needs no worker and no goroutine. There are at most 32
// workers ([WithConcurrency]), and events that have failed before have at most half
// of them.
//
// An event that says the same as the last one waiting in its lane, in all but
// time and resource version, takes its place (outcome coalesced): in an outage an
// object that repeats itself costs one entry. If the queue is full
// ([WithQueueBytes]), the oldest waiting event of the same object is dropped,
// else the oldest of all (overflow). An event above 3 MiB is dropped itself. An
// event older than an hour ([WithMaxAge]) is dropped when its turn comes (expired).
//
// # Attempts and outcomes
//
// An attempt takes at most 16 s ([WithTimeout]). The waits between the attempts of
// an event are up to 1, 2, 4, 8 and then 10 s ([WithRetryWait], [Backoff]); see
// [CheckRetry] for what is retried.
//
//	2xx                                        delivered
//	429                                        duplicate
//	429 after an attempt that was sent but     unconfirmed: nobody knows whether the
//	got no answer, or 502 or 504               first post was acted on
//	other 4xx, 501, 3xx unless it keeps the    rejected, after one attempt
//	POST (307, 308)
//	other 5xx, no answer, a certificate that   tried again
//	does not verify
//
// Whose fault is a failure? The event's only if the endpoint serves others, that is,
// answers them below 500 or with 501. Each failure after the first is a strike, as
// large as the share of the other events' attempts since its previous failure that
// were served. After nine strikes ([WithRetryMax]) the event is exhausted. If no other
// event was tried, a status 5xx other than 502 to 504 is half a strike, and no answer
// is none.
//
// After four failures in a row the endpoint is down. Then one attempt is started
// every 1 to 2 s, for another object each time, and nothing counts against any
// event. The first one that is served ends it, and every lane is ready at once. When
// the endpoint has served nobody for 10 s it is an outage: one error line, and
// event_recorder_endpoint_up is 0.
//
// Events for which no reference can be made, or none with a kind and a name, are
// invalid. Those left when a drain ends are saved if there is a journal, else they
// are counted as shutdown.
//
// # Stopping
//
// [EventRecorder.Shutdown] takes no more events, waits for those pending, and at
// its deadline counts and reports what is left. In a drain all waits end, new waits
// are at most 1 s and attempts at most 4 s, so that an endpoint that is back gets
// everything. A recorder made by NewRecorder does that by itself, after the manager
// has stopped the reconcilers, for at most 8 s ([WithDrainTimeout]). The leader lease
// is held meanwhile, and webhooks of the manager stop after it. A manager that loses
// its lease ends everything at once, without a drain: call Shutdown after mgr.Start
// has returned. [EventRecorder.Flush] waits for what was recorded before it, for
// tests and for checkpoints.
//
// With [WithJournal], pending events are kept in a file, and the next process
// delivers them. The journal holds what has been pending for 100 ms; a healthy
// endpoint never makes it touch the disk.
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
//	event_recorder_recovered_total                   events from the journal of an earlier process
//	event_recorder_journal_errors_total              times that the journal failed
//	event_recorder_journal_bytes                     the size of the journal
//
// # Logs
//
// One error line when an outage begins and one info line when it ends. Of lost
// events the first of each outcome at once, and then at most one line a minute with
// the newest and their number; recorders of one controller and registry share these
// limits. Verbosity 1 has duplicates, verbosity 2 every recorded event. Every line
// has the key controller. No line shows credentials, path or query of the endpoint's
// URL, nor an answer of an endpoint whose URL has any of these.
//
// # Testing
//
// Package eventstest has an endpoint for the tests of a controller. It answers as
// notification-controller does, can be told to fail, and needs no sleeping.
package events
