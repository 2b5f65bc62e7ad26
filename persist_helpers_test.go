package events_test

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	events "github.com/eventrecorder/events"
	"github.com/eventrecorder/events/internal/journal"
)

const (
	msgJournalDamaged = "Journal is damaged, events may be missing"
	msgJournalFails   = "Journal cannot be written, events are kept in memory only"
	msgJournalWorks   = "Journal works again"
)

// journalFile is the one journal in a directory.
func journalFile(t *testing.T, dir string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*.journal"))
	if err != nil || len(found) != 1 {
		t.Fatalf("journals in %s: %v, error %v", dir, found, err)
	}
	return found[0]
}

func journalSize(t *testing.T, dir string) int64 {
	t.Helper()
	info, err := os.Stat(journalFile(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// crash returns a directory with what a process that is killed now leaves behind.
func crash(t *testing.T, dir string) string {
	t.Helper()
	from, copied := journalFile(t, dir), t.TempDir()
	text, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(filepath.Join(copied, filepath.Base(from)), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return copied
}

// left reads the events that a process that is killed now leaves behind.
func left(t *testing.T, dir string) []events.Event {
	t.Helper()
	found, damage := leftDamaged(t, dir)
	if damage != nil {
		t.Error(damage)
	}
	return found
}

func leftDamaged(t *testing.T, dir string) (found []events.Event, damage error) {
	t.Helper()
	j, r, err := journal.Open(journalFile(t, crash(t, dir)))
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	for _, entry := range r.Entries {
		var e events.Event
		if err := json.Unmarshal(entry.Data[24:], &e); err != nil {
			t.Fatal(err)
		}
		found = append(found, e)
	}
	return found, r.Damage
}

// closed ends a recorder whose events are all settled.
func (h *harness) closed() {
	h.t.Helper()
	if err := h.Shutdown(h.t.Context()); err != nil {
		h.t.Error(err)
	}
}

// wantJournal checks the journal's part of the log: how many errors were counted, and
// how many lines there are of each message.
func (h *harness) wantJournal(errors, damaged, fails, works int) {
	h.t.Helper()
	if n := h.value("event_recorder_journal_errors_total"); n != float64(errors) {
		h.t.Errorf("%v errors of the journal counted, want %d", n, errors)
	}
	for message, want := range map[string]int{msgJournalDamaged: damaged, msgJournalFails: fails, msgJournalWorks: works} {
		if got := h.log.with(message); len(got) != want {
			h.t.Errorf("%d lines %q, want %d: %v", len(got), message, want, got)
		}
	}
}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v, want one with %q", err, part)
		}
	}
}

// must fails the test if a step of its preparation does.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// appendTo writes at the end of a file.
func appendTo(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	must(t, err)
	_, err = io.WriteString(f, text)
	must(t, err)
	must(t, f.Close())
}
