package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/eventrecorder/events"
	"github.com/eventrecorder/events/eventstest"
)

// The events that are lost when a process is killed in an outage: it records
// events, each on a goroutine of its own, while the endpoint refuses connections. A
// quarter of a second later it is killed, and a process that starts then, with the
// endpoint back, has five seconds to deliver what it finds. Only this library keeps
// anything for it, and only with a journal.

// measureKill fills the row about a process that is killed.
func measureKill(r *report, s scale) error {
	losses := make(map[killTask][]int)
	with, without := killTask{Column: ours, Journal: true}, killTask{Column: ours}
	tasks := []killTask{with, without, {Column: fluxPeer}, {Column: goroutine}}
	for range s.runs() {
		for _, t := range tasks {
			lost, err := t.lost(s.killEvents)
			if err != nil {
				return fmt.Errorf("%v: %w", t.Column, err)
			}
			losses[t] = append(losses[t], lost)
		}
	}
	row := r.row(count(s.killEvents) + " events pending when the process is killed: lost")
	for _, t := range tasks {
		row.set(t.Column, "%s", none(median(losses[t])))
	}
	row.set(ours, "%s with a journal, %s without", none(median(losses[with])), none(median(losses[without])))
	most := slices.Max(losses[with])
	r.goal(most == 0, "nothing that was pending for 100 ms lost when a process with a journal is killed, in any run",
		"%s of %s", none(most), count(s.killEvents))
	return nil
}

// killTask says what the process does that is killed.
type killTask struct {
	Column  column
	Journal bool
}

// killOrder is a killTask with what its process must know.
type killOrder struct {
	killTask
	URL, Dir string
	Events   int
}

// killEnv tells a process that it is to record until it is killed.
const killEnv = "COMPARE_KILL"

func (t killTask) lost(total int) (int, error) {
	dir, err := os.MkdirTemp("", "compare-journal-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	ep := eventstest.NewEndpoint(eventstest.WithWindow(0))
	defer ep.Close()
	ep.Down()
	order := killOrder{killTask: t, URL: ep.URL(), Dir: dir, Events: total}
	if err := order.runAndKill(); err != nil {
		return 0, err
	}
	if err := ep.Up(); err != nil {
		return 0, err
	}
	next, err := order.recorder()
	if err != nil {
		return 0, err
	}
	defer next.stop()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = next.wait(ctx) // what is not delivered is lost
	return total - len(ep.Events()), nil
}

// runAndKill starts the process, and kills it when it has recorded its events.
func (o killOrder) runAndKill() error {
	task, err := json.Marshal(o)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	process := exec.Command(self)
	process.Env = append(os.Environ(), killEnv+"="+string(task))
	process.Stderr = os.Stderr
	out, err := process.StdoutPipe()
	if err != nil {
		return err
	}
	if err := process.Start(); err != nil {
		return err
	}
	_, err = bufio.NewReader(out).ReadString('\n')
	if err == nil {
		time.Sleep(250 * time.Millisecond)
	}
	_ = process.Process.Kill()
	_ = process.Wait()
	return err
}

func (o killOrder) recorder() (recorder, error) {
	var opts []events.Option
	if o.Journal {
		opts = append(opts, events.WithJournal(o.Dir))
	}
	return newRecorder(o.Column, o.URL, nil, silent(), opts...)
}

// recordUntilKilled is what the process does.
func recordUntilKilled(task string) error {
	var o killOrder
	if err := json.Unmarshal([]byte(task), &o); err != nil {
		return err
	}
	r, err := o.recorder()
	if err != nil {
		return err
	}
	var begun sync.WaitGroup
	for i := range o.Events {
		begun.Add(1)
		go func() {
			if o.Column == ours {
				defer begun.Done()
			} else {
				begun.Done() // a call of the peer does not return in time
			}
			r.AnnotatedEventf(pod("podinfo-"+count(i%100)), annotations, corev1.EventTypeNormal, "Progressing", "Health check passed in %d ms", i)
		}()
	}
	begun.Wait()
	fmt.Println("recorded")
	time.Sleep(time.Hour)
	return nil
}
