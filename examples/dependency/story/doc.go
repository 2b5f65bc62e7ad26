// Package story tells why a recorder must not post on the goroutine of its
// caller.
//
// Object B depends on object A. A needs a good two minutes to become ready;
// meanwhile B checks A every 30 seconds and records DependencyNotReady each
// time. The notification endpoint is unreachable for a moment, and when it is back it
// answers 429 with a Retry-After of five minutes, since it has the event
// already. A recorder that posts on its caller's goroutine and finds the 429 on
// a retry obeys: B's worker stands still, and B learns minutes late that A is
// ready. With a recorder that posts in the background B is ready within one
// retry interval of A.
//
// The reconcilers are those of any controller: they take a client.Client and a
// record.EventRecorder. The objects are ConfigMaps, so that no cluster needs a
// CRD. [Play] runs them without a cluster. In one, a test sets up a [Plan], an
// endpoint and a [Timeline], passes the client of [Trouble] to the recorder,
// adds the [Reconciler] to a manager, and creates [A] and [B]:
//
//	plan, _ := story.NewPlan(time.Second)
//	endpoint := eventstest.NewEndpoint(eventstest.WithWindow(plan.RetryAfter))
//	timeline := story.NewTimeline()
//	recorder, _ := events.NewRecorder(mgr, log, endpoint.URL(), "story",
//		events.WithHTTPClient(story.Trouble(endpoint, plan, timeline)),
//		events.WithRetryWait(plan.WaitMin, plan.WaitMax))
//	_ = (&story.Reconciler{
//		Client:   mgr.GetClient(),
//		Recorder: timeline.Recorder(recorder),
//		Plan:     plan,
//		Timeline: timeline,
//	}).SetupWithManager(mgr)
//	// Start the manager, then begin.
//	timeline.Begin()
//	_ = c.Create(ctx, story.A(namespace, time.Now().Add(plan.AReady)))
//	_ = c.Create(ctx, story.B(namespace))
//	_ = timeline.WaitReady(ctx, story.NameB)
//	// Stop the manager and wait for its end: B's reconciler records its last
//	// event after B is ready, and the recorder is drained then.
//	err := plan.Kept(timeline)
//
// All errors but the last are left out here.
package story
