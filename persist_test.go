package events_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	events "github.com/eventrecorder/events"
	"github.com/eventrecorder/events/eventstest"
)

func TestPendingEventsAreDeliveredByTheNextRecorderOnTheSameJournal(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		tr := eventstest.NewTransport()
		defer tr.Close()
		tr.Down()
		h := newHarness(t, tr.URL(), on(tr), events.WithJournal(dir))
		for i := range 100 {
			h.say(fmt.Sprint("object", i%7), fmt.Sprint("event ", i))
		}
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		t.Log(h.Shutdown(ctx))
		h.wantOutcomes(map[string]int{"saved": 100})
		_ = tr.Up()
		next := newHarness(t, tr.URL(), on(tr), events.WithJournal(dir))
		next.settled()
		next.wantOutcomes(map[string]int{"delivered": 100})
		if n := wantOrder(t, tr.Events()); n != 100 {
			t.Errorf("%d events arrived", n)
		}
		if n := next.value("event_recorder_recovered_total"); n != 100 {
			t.Errorf("%v recovered", n)
		}
		t.Log(next.value("event_recorder_journal_bytes"))
		if err := next.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
}
