//go:build race

package events

// Under the race detector sync.Pool drops at random what it is given.
func init() { underRace = true }
