package events

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/eventrecorder/events/internal/journal"
)

const (
	// saveAge is how long an event may be pending before it is written to the
	// journal, and saveEvery how often at most the journal is written. Together
	// they stay below the 100 ms that are promised. What is delivered sooner never
	// touches the disk.
	saveAge   = 80 * time.Millisecond
	saveEvery = 15 * time.Millisecond

	// saveBatch is how many events are copied at a time, so that a recording call
	// waits for microseconds.
	saveBatch = 128

	// journalPause is how long the journal is left alone after an error.
	journalPause = time.Minute

	// compactFrom is the size of the file from which on it is worth rewriting.
	compactFrom = 64 << 10
)

// errPaused is why a journal that failed less than journalPause ago is not written.
var errPaused = errors.New("the journal is paused")

// persistence keeps what is pending in a journal, so that the next process can
// deliver it. It runs on the goroutine of a timer that is set only while there is
// something to write, and never under the lock of the queue.
type persistence struct {
	d *delivery

	mu      sync.Mutex // held over writes; only persistence takes it
	journal *journal.Journal
	paused  time.Time // the end of the pause after an error; zero: no error
	size    int64     // of the file, as it is counted
}

// openPersistence opens the journal of a recorder and returns what an earlier
// process left in it.
func openPersistence(d *delivery) (*persistence, []*item, error) {
	fault := func(err error) error { return fmt.Errorf("events: WithJournal(%q): %w", d.journalDir, err) }
	if err := os.MkdirAll(d.journalDir, 0o700); err != nil {
		return nil, nil, fault(err)
	}
	j, found, err := journal.Open(filepath.Join(d.journalDir, journalName(d.controller, d.endpoint.String())))
	if err != nil {
		return nil, nil, fault(err)
	}
	p := &persistence{d: d, journal: j}
	var items []*item
	damage := found.Damage
	for _, e := range found.Entries {
		it, err := decodeItem(e)
		if err != nil {
			damage = errors.Join(damage, err)
			d.queue.done = append(d.queue.done, e.ID)
			continue
		}
		items = append(items, it)
	}
	d.queue.journaled, d.queue.seq = p.save, found.LastID
	if damage != nil {
		d.counts.journalErrors.Add(1)
		d.log.Error(damage, "Journal is damaged, events may be missing")
	}
	p.countSize()
	return p, items, nil
}

// journalName is that of the file for a controller and an endpoint.
func journalName(controller, endpoint string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(controller + "\x00" + endpoint)) // never fails
	name := strings.Map(func(r rune) rune {
		if r < 0x80 && isAlphanumeric(byte(r)) || r == '-' {
			return r
		}
		return '_'
	}, cutBytes(controller, 100))
	return fmt.Sprintf("events-%s-%016x.journal", name, h.Sum64())
}

// save writes what has waited for saveAge, and what is done.
func (p *persistence) save() {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.journal == nil || time.Now().Before(p.paused):
	case p.paused.IsZero():
		p.check(p.append(saveAge))
	default:
		p.check(p.rewrite())
	}
	p.d.queue.saveAgain(p.paused)
}

// saveAll writes all that is pending, also in a pause, and reports whether the
// journal has it then.
func (p *persistence) saveAll() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.saveAllLocked()
}

func (p *persistence) saveAllLocked() bool {
	if p.journal == nil {
		return false
	}
	select {
	case <-p.d.finished:
		return false // Too late. What was pending counts as lost; the file may still have it.
	default:
	}
	err := errPaused
	if p.paused.IsZero() {
		err = p.append(0)
	}
	if err == nil {
		err = p.journal.Append(nil, nil) // fails if the file was removed
	}
	if err != nil {
		err = p.rewrite()
	}
	return p.check(err)
}

// append writes what has waited for at least the given time, and what is done.
func (p *persistence) append(age time.Duration) error {
	for upTo := p.d.queue.last(); ; {
		batch, done := p.d.queue.unsaved(age, upTo), p.d.queue.takeDone()
		if len(batch)+len(done) == 0 {
			break
		}
		if err := p.journal.Append(p.entries(nil, batch), done); err != nil {
			return err
		}
	}
	if p.journal.Size() > compactFrom && p.journal.Size() > 2*p.journal.LiveBytes() {
		return p.rewrite()
	}
	return nil
}

// rewrite writes the journal anew from what is pending.
func (p *persistence) rewrite() error {
	var all []journal.Entry
	for upTo := p.d.queue.unsaveAll(); ; {
		batch := p.d.queue.unsaved(0, upTo)
		if len(batch) == 0 {
			return p.journal.Rewrite(all)
		}
		all = p.entries(all, batch)
	}
}

// check notes an error, or that there is none any more. It reports whether there is
// none.
func (p *persistence) check(err error) bool {
	p.countSize()
	before := p.paused
	switch {
	case err != nil:
		p.d.counts.journalErrors.Add(1)
		p.paused = time.Now().Add(journalPause)
		if before.IsZero() {
			p.d.log.Error(err, "Journal cannot be written, events are kept in memory only", "again", journalPause.String())
		}
	case !before.IsZero():
		p.paused = time.Time{}
		p.d.log.Info("Journal works again")
	}
	return err == nil
}

func (p *persistence) countSize() {
	size := p.journal.Size()
	p.d.counts.journalBytes.Add(size - p.size)
	p.size = size
}

// close writes all that is pending and closes the journal. It reports whether
// what is pending is saved.
func (p *persistence) close() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	saved := p.saveAllLocked()
	if err := p.journal.Close(); err != nil {
		saved = p.check(err)
	}
	p.d.counts.journalBytes.Add(-p.size)
	p.journal = nil
	return saved
}

func (p *persistence) entries(entries []journal.Entry, items []savedItem) []journal.Entry {
	for i := range items {
		entries = append(entries, items[i].encode(p.d.controller, p.d.instance))
	}
	return entries
}

// savedItem is a copy of what the journal needs of an item.
type savedItem struct {
	notification
	seq uint64
	key eventKey
}

// encode makes an entry of the journal: the key, the time, and the payload.
func (s *savedItem) encode(controller, instance string) journal.Entry {
	if n := len(s.metadata); n <= len(s.few) {
		s.metadata = s.few[:n] // of the copy: that of the item changes when an event is folded into it
	}
	b := make([]byte, 0, 24+s.bytes)
	b = binary.LittleEndian.AppendUint64(b, s.key.source)
	b = binary.LittleEndian.AppendUint64(b, s.key.number)
	b = binary.LittleEndian.AppendUint64(b, uint64(s.recorded.UnixNano()))
	return journal.Entry{ID: s.seq, Data: s.appendJSON(b, controller, instance)}
}

// decodeItem is the opposite. Nobody knows whether an attempt of the event got
// an answer.
func decodeItem(e journal.Entry) (*item, error) {
	if len(e.Data) < 24 {
		return nil, fmt.Errorf("entry %d has only %d bytes", e.ID, len(e.Data))
	}
	var event Event
	if err := json.Unmarshal(e.Data[24:], &event); err != nil {
		return nil, fmt.Errorf("entry %d: %w", e.ID, err)
	}
	c := call{regarding: &event.InvolvedObject, related: event.RelatedObject, annotations: event.Metadata,
		reason: event.Reason, action: event.Action, message: event.Message}
	if event.Severity == severityError {
		c.eventtype = corev1.EventTypeWarning
	}
	it := newItem(&c)
	it.recorded = time.Unix(0, int64(binary.LittleEndian.Uint64(e.Data[16:])))
	it.seq = e.ID
	it.key = eventKey{binary.LittleEndian.Uint64(e.Data), binary.LittleEndian.Uint64(e.Data[8:])}
	it.saved, it.unanswered = true, true
	return it, nil
}

// What follows is the part of the queue that knows of the journal. unsavedFirst
// is the pending event that is not in the journal and was recorded first; all
// behind it are not there either, since events come to the end of pending only.
//
// Rewriting goes through all of pending again, a batch at a time: to copy 30,000
// events at once takes 10 ms, for which every recording call would wait. Meanwhile
// events behind unsavedFirst still say that they are saved. That does no harm: the
// journal leaves out a "done" for what it does not have.

// restore puts events back that an earlier process left.
func (q *queue) restore(items []*item) (lost loss, startWorker bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, it := range items {
		q.counts.recorded.Add(1)
		q.counts.recovered.Add(1)
		key := it.laneKey()
		dropped, fits := q.makeRoomLocked(q.lanes[key], it)
		if dropped.events > 0 {
			dropped.events += lost.events
			lost = dropped
		}
		if !fits {
			q.done = append(q.done, it.seq)
			q.armSaveLocked(saveAge)
			continue
		}
		l := q.lanes[key]
		if l == nil {
			l = q.addLaneLocked(key)
		}
		q.appendLocked(l, it)
	}
	return lost, q.startLocked(time.Now())
}

// addedLocked notes an event that came to the end of pending.
func (q *queue) addedLocked(it *item) {
	if q.journaled == nil || it.saved {
		return
	}
	if q.unsavedFirst == nil {
		q.unsavedFirst = it
	}
	q.armSaveLocked(saveAge)
}

// leavesLocked notes an event that is about to leave its place in pending.
func (q *queue) leavesLocked(it *item) {
	if it == q.unsavedFirst {
		q.unsavedFirst = it.next
	}
	if it.saved {
		it.saved = false
		q.done = append(q.done, it.seq)
		q.armSaveLocked(saveAge)
	}
}

func (q *queue) armSaveLocked(wait time.Duration) {
	switch {
	case q.saveArmed || q.stopped:
		return
	case q.saveTimer == nil:
		q.saveTimer = time.AfterFunc(wait, q.journaled)
	default:
		q.saveTimer.Reset(wait)
	}
	q.saveArmed = true
}

// saveAgain is called when a save is over, and sets the timer for the next. paused
// is when a pause after an error ends, or zero.
func (q *queue) saveAgain(paused time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.saveArmed = false
	switch {
	case !paused.IsZero():
		q.armSaveLocked(time.Until(paused))
	case q.unsavedFirst != nil: // first, since it is the one that cannot wait
		q.armSaveLocked(max(saveEvery, saveAge-time.Since(q.unsavedFirst.recorded)))
	case len(q.done) > 0:
		q.armSaveLocked(saveAge)
	}
}

// last is the sequence number of the event that was recorded last. Who writes what
// is pending stops there, and so comes to an end while others record.
func (q *queue) last() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.seq
}

// unsaved returns a batch of events, up to a sequence number, that are not in the
// journal and have waited for at least the given time. They count as written from
// now on: after an error, all is written anew.
func (q *queue) unsaved(age time.Duration, upTo uint64) (batch []savedItem) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	for it := q.unsavedFirst; it != nil && it.seq <= upTo && len(batch) < saveBatch; it = it.next {
		if age > 0 && now.Sub(it.recorded) < age {
			break
		}
		it.saved = true
		batch = append(batch, savedItem{it.notification, it.seq, it.key})
		q.unsavedFirst = it.next
	}
	return batch
}

// takeDone returns what is in the journal and done.
func (q *queue) takeDone() (done []uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	done, q.done = q.done, nil
	return done
}

// unsaveAll makes all pending events count as not written, and returns the last
// sequence number.
func (q *queue) unsaveAll() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.unsavedFirst, q.done = q.pending.front, nil
	return q.seq
}
