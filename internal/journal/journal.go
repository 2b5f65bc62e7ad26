package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/gofrs/flock"
)

// ErrLocked says that another process, or another Journal of this process, holds
// the file.
var ErrLocked = errors.New("journal: in use by another process, or twice in this one")

var (
	errUnusable = errors.New("the file could not be replaced; Rewrite starts it anew")
	errReplaced = errors.New("the file was removed, replaced or cut by somebody else")
)

const (
	writeSize  = 256 << 10 // of one write in Rewrite
	bufferKept = 1 << 20   // between two calls of Append
)

// A Journal is an open file of entries.
//
// Append, Rewrite and Close are called by one goroutine at a time. Size and
// LiveBytes may be called at any time, by any goroutine.
type Journal struct {
	path   string
	lock   *flock.Flock
	closed bool

	file *os.File         // nil after a Rewrite that failed half-way, and after Close
	live map[uint64]int64 // bytes of the record of each entry that is not done
	buf  []byte

	// size is where the next record goes. What the file has beyond it is the
	// piece of a write that failed.
	size      atomic.Int64
	liveBytes atomic.Int64
}

// Recovered is what Open found in the file.
type Recovered struct {
	// Entries were added and are not done. The oldest is the first.
	Entries []Entry

	// LastID is the highest ID in the file, also of what is done.
	LastID uint64

	// Damage is nil, or says what could not be read: the tail was torn, or a bit
	// flipped, or the header is that of another version. It is no reason to stop.
	Damage error
}

// Open opens or creates the file at path, in a directory that exists, and reads
// what was left in it. It cuts off what does not check. A file with another
// header is kept as path.unreadable, where it replaces an older one.
//
// The error is ErrLocked, or tells why the directory or the disk cannot be used.
func Open(path string) (*Journal, Recovered, error) {
	j := &Journal{path: path, lock: flock.New(path + ".lock")}
	found, err := j.open()
	if err != nil {
		_ = j.release() // not Close, which empties the file if it knows of no entry
		return nil, Recovered{}, wrap(err)
	}
	return j, found, nil
}

func (j *Journal) open() (Recovered, error) {
	if err := j.takeLock(); err != nil {
		return Recovered{}, err
	}
	_ = os.Remove(j.temporary()) // Rewrite reports it if it cannot be removed

	if err := j.openFile(); err != nil {
		return Recovered{}, err
	}
	info, err := j.file.Stat()
	if err != nil {
		return Recovered{}, err
	}
	if !info.Mode().IsRegular() { // a read from a pipe would wait for ever
		return Recovered{}, fmt.Errorf("%s: not a regular file", j.path)
	}

	c := read(j.file, info.Size())
	switch {
	case c.foreign:
		if err = j.closeFile(); err == nil { // Windows renames no open file
			err = os.Rename(j.path, j.path+".unreadable")
		}
		if err == nil {
			err = j.openFile()
		}
		c.Damage = fmt.Errorf("%w; the file is kept as %s.unreadable", c.Damage, j.path)
	case c.good < info.Size():
		err = j.file.Truncate(c.good)
	}
	if err != nil {
		return Recovered{}, err
	}
	if c.Damage != nil {
		c.Damage = fmt.Errorf("journal: %s: %w", j.path, c.Damage)
	}

	j.live = make(map[uint64]int64, len(c.Entries))
	for _, e := range c.Entries {
		j.live[e.ID] = e.size()
		j.liveBytes.Add(e.size())
	}
	j.size.Store(c.good)
	return c.Recovered, nil
}

// Append adds entries, and then marks entries as done, in one write. A "done" for
// an ID that is not in the journal is left out.
//
// After an error nothing of the call counts. The next call first cuts off what
// this one may have left in the file, so it may well succeed: on a disk with
// room again, for example. If the file or its directory is gone, each call
// fails until Rewrite makes them anew.
func (j *Journal) Append(add []Entry, done []uint64) error {
	return wrap(j.append(add, done))
}

func (j *Journal) append(add []Entry, done []uint64) (err error) {
	if err := j.check(); err != nil {
		return err
	}
	b := j.buf[:0]
	if j.Size() == 0 {
		b = append(b, header...)
	}
	start, encoded := len(b), 0
	defer func() {
		if err != nil {
			for _, e := range add[:encoded] {
				delete(j.live, e.ID)
			}
		}
	}()

	var bytes int64
	for _, e := range add {
		if b, err = encode(b, e, j.live); err != nil {
			return err
		}
		encoded++
		bytes += e.size()
	}
	for _, id := range done {
		if _, ok := j.live[id]; ok {
			b = appendRecord(b, typeDone, id, nil)
		}
	}
	if cap(b) <= bufferKept {
		j.buf = b
	}
	if len(b) == start {
		return nil
	}

	if _, err := j.file.WriteAt(b, j.Size()); err != nil {
		return err
	}
	for _, id := range done {
		bytes -= j.live[id]
		delete(j.live, id)
	}
	j.size.Add(int64(len(b)))
	j.liveBytes.Add(bytes)
	return nil
}

// check makes sure that a write goes to the end of the file that the next process
// will read. To ask the file system each time costs about a microsecond; not to
// ask would write into a removed file for ever, without an error.
func (j *Journal) check() error {
	if j.closed {
		return os.ErrClosed
	}
	if j.file == nil {
		return errUnusable
	}
	ours, err := j.file.Stat()
	if err != nil {
		return err
	}
	named, err := os.Stat(j.path)
	if err != nil {
		return err
	}
	if !os.SameFile(ours, named) || ours.Size() < j.Size() {
		return errReplaced
	}
	if ours.Size() > j.Size() {
		return j.file.Truncate(j.Size())
	}
	return nil
}

// Rewrite replaces the file by one that holds only these entries, in this order.
// A process that is killed meanwhile leaves the old file or the new one, never a
// mixture.
//
// It starts from what it is given and not from the old file, so it also recovers
// from whatever made Append fail: a removed file, a removed directory (made again,
// 0700), a lock file that was removed with it. After an error the old file is
// still there, and Append still works on it if it did before, except when the
// very last step failed: then Append fails until a Rewrite succeeds.
func (j *Journal) Rewrite(entries []Entry) error {
	return wrap(j.rewrite(entries))
}

func (j *Journal) rewrite(entries []Entry) error {
	if j.closed {
		return os.ErrClosed
	}
	if err := os.MkdirAll(filepath.Dir(j.path), 0o700); err != nil {
		return err
	}
	if err := j.takeLock(); err != nil {
		_ = j.closeFile() // it may be somebody else's by now
		return err
	}
	live := make(map[uint64]int64, len(entries))
	size, err := j.writeTemporary(entries, live)
	if err == nil {
		_ = j.closeFile() // Windows replaces no open file
		err = os.Rename(j.temporary(), j.path)
	}
	if err != nil {
		_ = os.Remove(j.temporary())
		return err
	}
	if err := j.openFile(); err != nil {
		return err
	}
	var bytes int64
	for _, n := range live {
		bytes += n
	}
	j.live = live
	j.size.Store(size)
	j.liveBytes.Store(bytes)
	return nil
}

// writeTemporary writes the new file beside the old one. It fills live.
func (j *Journal) writeTemporary(entries []Entry, live map[uint64]int64) (size int64, err error) {
	_ = os.Remove(j.temporary()) // one of a process that was killed; if it stays, the next line fails
	f, err := os.OpenFile(j.temporary(), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()

	b := []byte(header) // not written without an entry
	for i, e := range entries {
		if b, err = encode(b, e, live); err != nil {
			return 0, err
		}
		if len(b) >= writeSize || i == len(entries)-1 {
			if _, err := f.Write(b); err != nil {
				return 0, err
			}
			size += int64(len(b))
			b = b[:0]
		}
	}
	return size, nil
}

// encode appends the record of an entry to b and its size to live.
func encode(b []byte, e Entry, live map[uint64]int64) ([]byte, error) {
	if _, ok := live[e.ID]; ok {
		return b, fmt.Errorf("entry %d is there already", e.ID)
	}
	if len(e.Data) > maxData {
		return b, fmt.Errorf("entry %d has %d bytes, more than %d", e.ID, len(e.Data), maxData)
	}
	live[e.ID] = e.size()
	return appendRecord(b, typeEntry, e.ID, e.Data), nil
}

// Size is the length of the file in bytes.
func (j *Journal) Size() int64 { return j.size.Load() }

// LiveBytes is the part of Size that belongs to entries that are not done: what a
// Rewrite would keep, up to the header.
func (j *Journal) LiveBytes() int64 { return j.liveBytes.Load() }

// Close releases the file and its lock. If every entry is done, the file is left
// empty. What an Append failed to mark as done is not done; who knows better
// calls Rewrite before. A second Close does nothing.
func (j *Journal) Close() error {
	var err error
	if j.file != nil {
		end := j.Size()
		if len(j.live) == 0 {
			end = 0
		}
		err = j.file.Truncate(end)
	}
	return wrap(errors.Join(err, j.release()))
}

func (j *Journal) release() error {
	j.closed = true
	return errors.Join(j.closeFile(), j.lock.Close())
}

// takeLock takes the lock, or makes sure that the one we have is still that of
// the lock file, and not of one that was removed.
func (j *Journal) takeLock() error {
	if j.lock.Locked() {
		ours, err := j.lock.Stat()
		if err != nil {
			return err
		}
		if named, err := os.Stat(j.lock.Path()); err == nil && os.SameFile(ours, named) {
			return nil
		}
		if err := j.lock.Unlock(); err != nil {
			return err
		}
	}
	ok, err := j.lock.TryLock()
	if err == nil && !ok {
		err = fmt.Errorf("%w: %s", ErrLocked, j.path)
	}
	return err
}

func (j *Journal) temporary() string { return j.path + ".tmp" }

func (j *Journal) openFile() (err error) {
	j.file, err = os.OpenFile(j.path, os.O_RDWR|os.O_CREATE, 0o600)
	return err
}

func (j *Journal) closeFile() error {
	if j.file == nil {
		return nil
	}
	f := j.file
	j.file = nil
	return f.Close()
}

func wrap(err error) error {
	if err == nil || errors.Is(err, ErrLocked) {
		return err
	}
	return fmt.Errorf("journal: %w", err)
}
