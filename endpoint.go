package events

import (
	"math/rand/v2"
	"time"
)

// Whose fault is a failed attempt: the event's or the endpoint's? An event is at
// fault only if the endpoint serves others. Two timelines, "+" served, "-" not,
// X the event in question and a to f others:
//
//	the endpoint's:  a+ b+ X- c- d- X- e- X- f-     nobody is served after the first X-
//	the event's:     a+ X- b+ c+ X- d+ X- e- f+     X fails again and again, others do not
//
// So each failure of X after its first one is weighed with what happened since
// the one before: the share of the others' attempts that were served. That share
// is X's strike: 0 in the first line, then 1, 1 and 1/2 in the second. Nine whole
// strikes end an event. If attempts fail at random, whatever share of them, a strike
// is about as large as the chance to be served was, so that a merely unlucky event
// is lost with e⁻⁹ = 0.012 % or less; with more than nine of ten failing, when few
// are served between two strikes, it may be a little more.
//
// The simpler rule, a fixed number of attempts, was refused: five lose 3 % of all
// events when one of two backends is gone, and no number is right for two of
// three. So were windows of time around an answer: at the edges of an outage
// they blame events, and in quiet hours they call one bad event an outage.

const (
	// downAfter is how many attempts in a row must fail for the endpoint to count
	// as down. Failures of events with a strike do not count: one bad event in quiet
	// hours is no outage.
	downAfter = 4

	// While the endpoint is down, an attempt is started every probeMin to probeMax.
	probeMin = time.Second
	probeMax = 2 * time.Second

	// outageAfter is how long the endpoint must have served nobody before it is
	// called an outage in the log and the metrics. A rolling update takes less.
	outageAfter = 10 * time.Second

	// loneStrike is the strike of a failure when no other event was tried, but the
	// endpoint stands and has spoken: a status 5xx of its own.
	loneStrike = 0.5
)

// endpoint is what the attempts of all events say about the notification
// endpoint. It does nothing by itself: facts go in, verdicts come out. Its owner
// serializes the calls.
type endpoint struct {
	maxStrikes float64

	// All attempts that ended while the endpoint was up, or ended its being down, and
	// those of them that were served.
	tried, served int

	row        int       // failed attempts in a row, see downAfter
	rowBegan   time.Time // when the first of them began
	lastServed time.Time // when the last served attempt ended

	down      bool
	announced bool      // the outage has lasted for outageAfter
	upAgain   time.Time // when the last time of being down ended
	nextProbe time.Time // no attempt starts earlier, while down
}

// history is what an event has been through.
type history struct {
	attempts int
	strikes  float64

	// suspect says that an attempt failed while the endpoint was up. tried and
	// served are the endpoint's numbers right after the last one that did.
	suspect       bool
	tried, served int

	// unanswered says that an attempt got no answer after it was sent. The endpoint
	// may have the event.
	unanswered bool
}

// ended is how an attempt ended.
type ended struct {
	began, at time.Time
	served    bool // answered below 500, or 501
	spoke     bool // not served, but with a status of the endpoint's own: not 502 to 504
}

// verdict is what follows from an attempt.
type verdict struct {
	giveUp  bool // the event is at fault, and has failed too often
	changed bool // the endpoint went down or came back: every wait is over
	outage  bool // an outage must be announced
	over    bool // an announced outage is over
	gone    bool // a shutdown has given the event up meanwhile, and said so
	began   time.Time
}

// judge takes in how an attempt of the event ended.
func (e *endpoint) judge(h *history, a ended) verdict {
	h.attempts++
	if a.served {
		return e.wasServed(a)
	}
	var v verdict
	// What began while the endpoint was down says nothing about the event, nor
	// about the endpoint of now.
	if !e.down && !a.began.Before(e.upAgain) {
		e.strike(h, a)
		if h.strikes > 0 && h.strikes >= e.maxStrikes {
			return verdict{giveUp: true}
		}
		v.changed = h.strikes == 0 && a.began.After(e.lastServed) && e.missed(a)
	}
	if e.down && !e.announced && a.at.Sub(e.rowBegan) >= outageAfter {
		e.announced, v.outage = true, true
	}
	v.began = e.rowBegan
	return v
}

func (e *endpoint) wasServed(a ended) verdict {
	v := verdict{changed: e.down, over: e.announced, began: e.rowBegan}
	if e.down {
		e.upAgain = a.at
	}
	e.tried++
	e.served++
	e.row, e.down, e.announced = 0, false, false
	e.lastServed = a.at
	return v
}

// strike weighs a failure with what happened to others since the one before.
func (e *endpoint) strike(h *history, a ended) {
	if h.suspect {
		switch others := e.tried - h.tried; {
		case others > 0:
			h.strikes += float64(e.served-h.served) / float64(others)
		case a.spoke:
			h.strikes += loneStrike
		}
	}
	e.tried++
	h.suspect, h.tried, h.served = true, e.tried, e.served
}

// missed counts a failure that may be the endpoint's, and reports whether the
// endpoint is down with it.
func (e *endpoint) missed(a ended) bool {
	if e.row == 0 {
		e.rowBegan = a.began
	}
	if e.row++; e.row < downAfter {
		return false
	}
	e.down, e.nextProbe = true, a.at
	return true
}

// mayStart reports whether an attempt may start now.
func (e *endpoint) mayStart(now time.Time) bool { return !e.down || !now.Before(e.nextProbe) }

// started notes that an attempt starts. A drain has no time to spread its probes.
func (e *endpoint) started(now time.Time, draining bool) {
	wait := probeMin
	if !draining {
		wait += rand.N(probeMax - probeMin)
	}
	e.nextProbe = now.Add(wait)
}

// forget is for when no event is left to ask the endpoint about: it counts as up.
// It reports whether an announced outage ends with that.
func (e *endpoint) forget() (over bool) {
	over = e.announced
	e.row, e.down, e.announced = 0, false, false
	return over
}
