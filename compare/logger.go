package main

import (
	"sync/atomic"

	"github.com/go-logr/logr"
)

// silentSink is a logger that shows nothing and counts what it is told at error
// level. logr.Discard() is none for the peer: it asks the sink, and that one has
// none.
type silentSink struct{ errors *atomic.Int64 }

// silent returns a logger that shows nothing.
func silent() logr.Logger {
	log, _ := counting()
	return log
}

// counting returns a logger that shows nothing, and its number of error lines.
func counting() (logr.Logger, *atomic.Int64) {
	n := new(atomic.Int64)
	return logr.New(silentSink{n}), n
}

func (silentSink) Init(logr.RuntimeInfo)            {}
func (silentSink) Enabled(level int) bool           { return level <= 0 }
func (silentSink) Info(int, string, ...any)         {}
func (s silentSink) Error(error, string, ...any)    { s.errors.Add(1) }
func (s silentSink) WithValues(...any) logr.LogSink { return s }
func (s silentSink) WithName(string) logr.LogSink   { return s }
