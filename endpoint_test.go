package events

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"
)

// story tells what happened to the events of an endpoint, an attempt on a line: the
// event, when the attempt began and ended in seconds, how it ended ("+" served, "-"
// no answer or that of a gateway, "5" a status 5xx of the endpoint's own), and what
// follows from it, if anything does. "forget" on a line of its own: no event is
// left.
type story struct {
	name       string
	maxStrikes float64 // 0: 7; below 0: 0
	facts      string
}

var storyTime = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func (s story) tell(t *testing.T) {
	e := endpoint{maxStrikes: s.maxStrikes}
	switch {
	case s.maxStrikes == 0:
		e.maxStrikes = defaultRetryMax
	case s.maxStrikes < 0:
		e.maxStrikes = 0
	}
	histories := map[string]*history{}
	at := func(word string) time.Time {
		seconds, err := strconv.ParseFloat(word, 64)
		if err != nil {
			t.Fatal(err)
		}
		return storyTime.Add(time.Duration(seconds * float64(time.Second)))
	}
	for line := range strings.Lines(strings.TrimSpace(s.facts)) {
		words := strings.Fields(line)
		if words[0] == "forget" {
			if got, want := fmt.Sprint(e.forget()), words[1]; got != want || e.down || e.announced || e.row != 0 {
				t.Errorf("%s: %s, and %+v", line, got, e)
			}
			continue
		}
		h := histories[words[0]]
		if h == nil {
			h = &history{}
			histories[words[0]] = h
		}
		attempts := h.attempts
		v := e.judge(h, ended{began: at(words[1]), at: at(words[2]), served: words[3] == "+", spoke: words[3] == "5"})
		var got []string
		if h.strikes > 0 && words[3] != "+" {
			got = append(got, strconv.FormatFloat(h.strikes, 'g', 3, 64))
		}
		if v.giveUp {
			got = append(got, "given-up")
		}
		if v.changed {
			got = append(got, map[bool]string{true: "down", false: "back"}[e.down])
		}
		if v.outage {
			got = append(got, fmt.Sprintf("outage-since-%v", v.began.Sub(storyTime).Seconds()))
		}
		if v.over {
			got = append(got, fmt.Sprintf("over-since-%v", v.began.Sub(storyTime).Seconds()))
		}
		if want := strings.Join(words[4:], " "); strings.Join(got, " ") != want {
			t.Errorf("%s: got %q", strings.TrimSpace(line), strings.Join(got, " "))
		}
		if h.attempts != attempts+1 {
			t.Errorf("%s: %d attempts", line, h.attempts)
		}
		if v.changed && e.down && !e.mayStart(at(words[2])) {
			t.Errorf("%s: the first probe must wait", line)
		}
	}
}

func TestEndpointStories(t *testing.T) {
	for _, s := range []story{
		{name: "ten attempts in healthy company", facts: `
			X 0 1 -
			a 2 3 +
			X 4 5 - 1
			a 6 7 +
			X 8 9 - 2
			a 10 11 +
			b 10 11 +
			X 12 13 - 3
			a 14 15 +
			X 16 17 - 4
			a 18 19 +
			X 20 21 5 5
			a 22 23 +
			X 24 25 - 6
			a 26 27 +
			X 28 29 - 7
			a 30 31 +
			X 32 33 - 8
			a 34 35 +
			X 36 37 - 9 given-up`},
		{name: "an event that is served at last", facts: `
			X 0 1 -
			a 2 3 +
			X 4 5 - 1
			X 6 7 +`},
		{name: "a strike is the share of the others that was served", facts: `
			a 0 1 +
			X 1 2 -
			a 3 4 +
			b 3 4 -
			X 5 6 - 0.5
			a 7 8 +
			b 7 8 +
			c 7 8 +
			d 7 8 -
			X 9 10 - 1.25
			a 11 12 -
			X 13 14 - 1.25
			a 15 16 +
			X 17 18 - 2.25`},
		{name: "the first failure counts nothing, whatever was served before", facts: `
			a 0 1 +
			b 0 1 +
			X 1 2 5
			X 3 4 5 0.5`},
		{name: "what the others did before the last failure counts once", facts: `
			X 0 1 -
			a 2 3 +
			b 2 3 +
			X 4 5 - 1
			X 6 7 - 1`},
		{name: "alone, with a status of the endpoint's own", facts: `
			X 0 1 5
			X 2 3 5 0.5
			X 4 5 5 1
			X 6 7 5 1.5
			X 8 9 5 2
			X 10 11 5 2.5
			X 12 13 5 3
			X 14 15 5 3.5
			X 16 17 5 4
			X 18 19 5 4.5
			X 20 21 5 5
			X 22 23 5 5.5
			X 24 25 5 6
			X 26 27 5 6.5
			X 28 29 5 7
			X 30 31 5 7.5
			X 32 33 5 8
			X 34 35 5 8.5
			X 36 37 5 9 given-up`},
		{name: "alone, without an answer: an outage and no fault", facts: `
			X 0 1 -
			X 2 3 -
			X 4 5 -
			X 6 7 - down
			X 7 8 -
			X 8 9 -
			X 9 10 - outage-since-0
			X 11 12 -
			X 13 1000 -`},
		{name: "with others, none of whom is served: no fault either", facts: `
			a 0 1 +
			X 2 3 5
			a 4 5 5
			X 6 7 5
			a 8 9 5 down`},
		{name: "the four need not be of different events, but in a row", facts: `
			a 0 1 -
			b 0 1 -
			c 0 1 -
			d 2 3 +
			a 4 5 - 0.333
			b 4 5 - 0.333
			e 4 5 -
			f 4 5 -
			g 4 5 -
			e 6 7 - down`},
		{name: "failures of events with a strike say nothing about the endpoint", facts: `
			X 0 1 -
			a 2 3 +
			X 4 5 - 1
			X 6 7 - 1
			X 8 9 - 1
			X 10 11 - 1
			X 12 13 - 1
			b 14 15 -
			c 14 15 -
			d 14 15 -
			X 16 17 - 1
			f 18 19 - down`},
		{name: "long hangs that began before the last served answer are none in a row", facts: `
			a 0 16 -
			b 1 16 -
			z 2 17 +
			c 3 18 -
			d 4 18 -
			e 17 18 -
			f 17.5 18 -
			g 18 19 -
			h 18 19 -
			i 18 19 - down`},
		{name: "nothing counts while down, nor what began while down", facts: `
			X 0 1 -
			a 0 1 +
			b 2 3 -
			c 2 3 -
			d 2 3 -
			e 2 3 - down
			X 4 5 5
			X 6 7 5
			a 8 9 + back
			X 8.5 10 5
			b 8 10 5
			X 9 11 5 0.333
			X 12 13 5 0.833`},
		{name: "what began before it went down and ended after it was back does not count", facts: `
			a 0 1 +
			b 2 3 -
			c 2 3 -
			d 2 3 -
			e 2 3 - down
			a 4 5 + back
			f 1.5 6 -
			g 1.5 6 -
			b 7 8 - 0.25`},
		{name: "it goes down again, and the outage is a new one", facts: `
			a 0 1 -
			b 0 1 -
			c 0 1 -
			d 0 1 - down
			a 9 9.99 -
			a 9 10 - outage-since-0
			a 11 12 -
			a 13 14 + back over-since-0
			e 15 16 -
			f 15 16 -
			g 15 16 -
			h 15 16 - down
			h 24 24.9 -
			h 24 25 - outage-since-15
			h 26 27 + back over-since-15
			h 28 29 +`},
		{name: "a blip is not announced, and so not over", facts: `
			a 0 1 -
			b 0 1 -
			c 0 1 -
			d 0 1 - down
			a 8 9 + back
			a 20 21 +`},
		{name: "announced at once if the attempts hang for as long", facts: `
			a 0 16 -
			b 1 16 -
			c 2 16 -
			d 3 16 - down outage-since-0`},
		{name: "the row begins with its first failure, not with the last served", facts: `
			a 0 1 +
			b 100 101 -
			c 102 103 -
			d 104 105 -
			e 106 107 - down
			e 108 109 -
			e 109 110 - outage-since-100`},
		{name: "nobody is left to ask", facts: `
			forget false
			a 0 1 -
			b 0 1 -
			c 0 1 -
			forget false
			a 2 3 -
			b 2 3 -
			c 2 3 -
			d 2 3 - down
			forget false
			a 4 5 -
			b 4 5 -
			c 4 5 -
			d 4 5 - down
			a 6 20 - outage-since-4
			forget true
			forget false
			e 21 22 +`},
		{name: "without retries the first strike ends an event", maxStrikes: -1, facts: `
			X 0 1 -
			Y 0 1 -
			X 2 3 -
			a 4 5 +
			b 4 5 -
			X 6 7 - 0.5 given-up
			Y 6 7 - 0.25 given-up`},
		{name: "without retries an outage costs nothing", maxStrikes: -1, facts: `
			X 0 1 -
			X 2 3 -
			X 4 5 -
			X 6 7 - down
			X 8 9 -
			a 10 11 + back
			X 9 12 -
			X 13 14 - 1 given-up`},
		{name: "one retry", maxStrikes: 1, facts: `
			X 0 1 -
			a 2 3 +
			b 2 3 -
			X 4 5 - 0.5
			a 6 7 +
			X 8 9 - 1.5 given-up`},
	} {
		t.Run(s.name, s.tell)
	}
}

// The figure that the rule is made for: whatever share of the attempts fails, an event
// that is merely unlucky is lost with about e⁻⁹ = 0.012 %.
func TestAMerelyUnluckyEventIsHardlyEverLost(t *testing.T) {
	const events, atATime = 100_000, 100
	for fails, bound := range map[float64]float64{0.2: 0.0002, 0.5: 0.0002, 0.67: 0.0002, 0.8: 0.0002, 0.9: 0.0002, 0.95: 0.0003, 0.98: 0.001} {
		t.Run(fmt.Sprint(fails), func(t *testing.T) {
			random := rand.New(rand.NewPCG(1, uint64(fails*100)))
			e := endpoint{maxStrikes: defaultRetryMax}
			pending := make([]history, atATime)
			now := storyTime
			lost, attempts := 0, 0
			for recorded := atATime; recorded < events; attempts++ {
				now = now.Add(2 * time.Millisecond)
				i := random.IntN(atATime)
				a := ended{began: now.Add(-time.Millisecond), at: now, served: random.Float64() >= fails, spoke: true}
				v := e.judge(&pending[i], a)
				if v.giveUp {
					lost++
				}
				if v.giveUp || a.served {
					pending[i] = history{}
					recorded++
				}
			}
			share := float64(lost) / events
			t.Logf("%.3f %% lost, %.1f attempts an event", share*100, float64(attempts)/events)
			if share > bound {
				t.Errorf("%.3f %% lost, at most %.2f %%", share*100, bound*100)
			}
		})
	}
}

// The other side: an event at fault is given up though most others fail too.
func TestAnEventAtFaultIsGivenUpInAnyCompanyThatIsServed(t *testing.T) {
	for fails, most := range map[float64]int{0: 10, 0.5: 30, 0.8: 200} {
		random := rand.New(rand.NewPCG(2, 3))
		e := endpoint{maxStrikes: defaultRetryMax}
		var bad history
		now := storyTime
		for given := false; !given; {
			for range 20 {
				now = now.Add(time.Second)
				e.judge(&history{}, ended{began: now.Add(-time.Millisecond), at: now, served: random.Float64() >= fails})
			}
			now = now.Add(time.Second)
			given = e.judge(&bad, ended{began: now.Add(-time.Millisecond), at: now}).giveUp
			if bad.attempts > most {
				t.Fatalf("%v of the others fail: %d attempts, %v strikes", fails, bad.attempts, bad.strikes)
			}
		}
		t.Logf("%v of the others fail: %d attempts", fails, bad.attempts)
	}
}

func TestProbesStartOneToTwoSecondsApart(t *testing.T) {
	e := endpoint{}
	if !e.mayStart(storyTime) {
		t.Error("an attempt must wait while the endpoint is up")
	}
	e.started(storyTime, false)
	if !e.mayStart(storyTime) {
		t.Error("an attempt must wait while the endpoint is up")
	}
	e.down = true
	for _, draining := range []bool{false, true} {
		shortest, longest := time.Hour, time.Duration(0)
		for range 1000 {
			e.started(storyTime, draining)
			wait := e.nextProbe.Sub(storyTime)
			shortest, longest = min(shortest, wait), max(longest, wait)
			if e.mayStart(e.nextProbe.Add(-1)) || !e.mayStart(e.nextProbe) {
				t.Fatal("not from its moment on")
			}
		}
		if shortest < time.Second || shortest > 1100*time.Millisecond || longest > 2*time.Second ||
			draining && longest != time.Second || !draining && longest < 1900*time.Millisecond {
			t.Errorf("draining %v: from %v to %v", draining, shortest, longest)
		}
	}
}
