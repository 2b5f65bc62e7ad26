package main

import "time"

// scale is how much of everything is measured.
type scale struct {
	quick bool

	// budget limits a series of calls that may block. The peer's block for 15
	// to 40 s each while the endpoint is down.
	budget time.Duration

	callRounds int
	callBurst  int // calls in a round
	peerBurst  int // the same of the peer, whose calls take longer

	deliveryPairs  int // of runs: this library and the plain loop
	deliveryEvents int // in a run for 1 object, and twice as many for more
	answerTime     time.Duration
	deliveryTime   time.Duration // of a run with that answer time, at most

	duplicates int

	outageEvents int

	recoveryEvents  int
	recoveryObjects int
	outage          time.Duration

	orderObjects int
	orderEvents  int // per object
	pace         time.Duration

	latency time.Duration // of the endpoint during the shutdown

	halfObjects int
	halfEvents  int // per object

	killEvents int

	growthEvents int
	growthRounds int
	objects      []int
}

var full = scale{
	budget: time.Minute,

	callRounds: 200,
	callBurst:  100,
	peerBurst:  20,

	deliveryPairs:  25,
	deliveryEvents: 1500,
	answerTime:     5 * time.Millisecond,
	deliveryTime:   150 * time.Millisecond,

	duplicates: 1000,

	outageEvents: 100_000,

	recoveryEvents:  2000,
	recoveryObjects: 200,
	outage:          20 * time.Second, // longer than the peer retries: 15 s

	orderObjects: 100,
	orderEvents:  50,
	pace:         20 * time.Millisecond,

	latency: 20 * time.Millisecond,

	halfObjects: 100,
	halfEvents:  10,

	killEvents: 1000,

	growthEvents: 100_000,
	growthRounds: 7,
	objects:      []int{1, 100, 10_000, 100_000},
}

var quickly = scale{
	quick:  true,
	budget: 100 * time.Millisecond,

	callRounds: 2,
	callBurst:  10,
	peerBurst:  2,

	deliveryPairs:  1,
	deliveryEvents: 20,
	answerTime:     time.Millisecond,
	deliveryTime:   2 * time.Millisecond,

	duplicates: 10,

	outageEvents: 2000,

	recoveryEvents:  20,
	recoveryObjects: 10,
	outage:          50 * time.Millisecond,

	orderObjects: 4,
	orderEvents:  2,
	pace:         time.Millisecond,

	latency: time.Millisecond,

	halfObjects: 2,
	halfEvents:  1,

	killEvents: 5,

	growthEvents: 100,
	growthRounds: 1,
	objects:      []int{1, 10},
}
