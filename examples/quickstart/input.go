package main

import (
	"bufio"
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"
)

//go:embed dependency-blocked.jsonl
var builtIn []byte

const (
	builtInName = "dependency-blocked.jsonl"

	// maxEvents keeps the timeline readable and the run short.
	maxEvents = 5000

	// longestSilence is in seconds of the log. The log that is built in has
	// three and a half minutes in which nothing was recorded, since the worker
	// waited; nobody wants to watch that.
	longestSilence = 20

	// shortestWait keeps a log of many hours from turning the waits between
	// attempts into a busy loop.
	shortestWait = 5 * time.Millisecond
)

// eventLog is a log to replay, in the order of time.
type eventLog struct {
	name    string
	entries []entry
	events  int
	span    float64 // seconds from the first to the last entry, without long silences
}

// entry is one event of the log, or a run of the old recorder's complaints.
type entry struct {
	seconds float64 // as in the log
	at      float64 // seconds since the first entry, without long silences

	object, reason, message string
	failed                  bool // has an error, so it is a warning whatever its reason

	// complaints counts lines in which the recorder that wrote the log says
	// that it could not post an event. They are no events.
	complaints int
	complaint  string // the first of them
}

// readLog reads a file, the standard input for "-", or the log that is built in
// for "".
func readLog(name string, stdin io.Reader) (*eventLog, error) {
	switch name {
	case "":
		return parseLog(builtInName, bytes.NewReader(builtIn))
	case "-":
		return parseLog("the standard input", stdin)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parseLog(name, f)
}

func parseLog(name string, r io.Reader) (*eventLog, error) {
	log := &eventLog{name: name}
	lines := bufio.NewReader(r)
	for number := 1; ; number++ {
		line, err := lines.ReadBytes('\n')
		if err != nil && err != io.EOF {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			e, err := parseEntry(line)
			if err != nil {
				return nil, fmt.Errorf("%s: line %d: %w", name, number, err)
			}
			log.add(e)
		}
		if log.events > maxEvents {
			return nil, fmt.Errorf("%s: more than %d events", name, maxEvents)
		}
		if err == io.EOF {
			break
		}
	}
	if log.events == 0 {
		return nil, fmt.Errorf("%s: there are no events in it", name)
	}
	log.leaveOutSilences()
	return log, nil
}

func parseEntry(line []byte) (entry, error) {
	var raw struct {
		Seconds *float64 `json:"t_seconds"`
		Name    string   `json:"name"`
		Reason  *string  `json:"reason"`
		Message string   `json:"message"`
		Error   *string  `json:"error"`
	}
	if err := json.Unmarshal(line, &raw); err != nil {
		return entry{}, err
	}
	e := entry{object: raw.Name, message: raw.Message, failed: raw.Error != nil}
	switch {
	case raw.Seconds == nil:
		return entry{}, errors.New("t_seconds is missing")
	case *raw.Seconds < 0 || *raw.Seconds > 1e9:
		return entry{}, fmt.Errorf("t_seconds is %v: must be between 0 and 1e9", *raw.Seconds)
	case raw.Name == "":
		return entry{}, errors.New("name is missing")
	case raw.Reason == nil && raw.Error == nil:
		return entry{}, errors.New("reason is missing, and error too")
	case raw.Reason == nil:
		e.complaints, e.complaint = 1, raw.Message+": "+*raw.Error
	default:
		e.reason = *raw.Reason
	}
	e.seconds = *raw.Seconds
	return e, nil
}

// add appends an entry. Complaints that follow each other become one entry.
func (log *eventLog) add(e entry) {
	if e.complaints == 0 {
		log.events++
	} else if n := len(log.entries); n > 0 && log.entries[n-1].complaints > 0 && log.entries[n-1].seconds == e.seconds {
		log.entries[n-1].complaints++
		return
	}
	log.entries = append(log.entries, e)
}

func (log *eventLog) leaveOutSilences() {
	slices.SortStableFunc(log.entries, func(a, b entry) int { return cmp.Compare(a.seconds, b.seconds) })
	for i := 1; i < len(log.entries); i++ {
		e, before := &log.entries[i], &log.entries[i-1]
		e.at = before.at + min(e.seconds-before.seconds, longestSilence)
	}
	log.span = log.entries[len(log.entries)-1].at
}

// pace is how many seconds of the log pass in a real one, at least 1.
type pace float64

// pace returns the pace at which the log takes at most length.
func (log *eventLog) pace(length time.Duration) pace {
	return pace(max(1, log.span/length.Seconds()))
}

// offset is when something happens that happened in the log after so many
// seconds.
func (p pace) offset(seconds float64) time.Duration {
	return time.Duration(seconds / float64(p) * float64(time.Second))
}

// real is how long a wait takes that takes d in the time of the log.
func (p pace) real(d time.Duration) time.Duration {
	return max(p.offset(d.Seconds()), shortestWait)
}
