// Package journal keeps entries in a file until they are done, so that a
// process that starts after a crash finds what the one before it left. It knows
// nothing of what an entry means: an entry is a number and some bytes.
//
// # Promise
//
//   - What Append accepted is read back after the end of the process, however it
//     ended. Power loss is not covered: nothing is synced to the disk.
//   - Open never fails because of what the file contains. Reading stops at the
//     first record that does not check, or that the disk cannot read, and the
//     rest is cut off.
//   - What is read back was written, and comes in the order of writing. When the
//     tail is lost, the newest entries are lost, and an entry comes back whose
//     "done" was in the tail.
//   - One Journal at a time holds a file.
//
// Less formally: the file may forget, but it does not lie, and it never stands
// in the way of a start.
//
// # Format
//
// A file is empty, or it is a header and then records, without gaps. Numbers are
// unsigned and little-endian.
//
//	header
//	   0   17  the text "events journal 1\n", where 1 is the version
//
//	record
//	   0    4  CRC-32C (Castagnoli) of all bytes of the record after this field
//	   4    4  n, the length of the data; at most 1 GiB
//	   8    1  type: 1 is an entry, 2 says that an entry is done
//	   9    8  ID of the entry
//	  17    n  data of the entry; a record of type 2 has none
//
// A record does not check if its checksum is wrong, if it is longer than the rest
// of the file, if its type is unknown, if a "done" carries data, or if an entry
// has the ID of one that is not done yet.
//
// # Files
//
// Beside the journal stand path.lock, which is never removed (to remove a lock
// file is a race), path.tmp while Rewrite runs, and path.unreadable: the last
// file found there with another header, thus of another version or not a journal.
//
// # Why a format of our own
//
// tidwall/wal refuses to open after a torn tail, and does not see a flipped bit.
// bbolt sees both, but it costs 45 µs a record where this costs 3, and programs
// that keep their queues in it have a record of failing at their start.
package journal

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
)

const (
	header = "events journal 1\n"

	prefixSize = 17
	maxData    = 1 << 30 // an int on every platform

	typeEntry = 1
	typeDone  = 2
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// An Entry is kept until it is done.
type Entry struct {
	// ID is chosen by the caller. No two entries that are not done have the same.
	ID   uint64
	Data []byte
}

func (e Entry) size() int64 { return prefixSize + int64(len(e.Data)) }

func appendRecord(b []byte, kind byte, id uint64, data []byte) []byte {
	start := len(b)
	b = append(b, 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(data)))
	b = append(b, kind)
	b = binary.LittleEndian.AppendUint64(b, id)
	b = append(b, data...)
	binary.LittleEndian.PutUint32(b[start:], crc32.Checksum(b[start+4:], castagnoli))
	return b
}

// contents is what a file says.
type contents struct {
	Recovered
	good    int64 // length of the part that checks
	foreign bool  // the header is not ours
}

// read reads a file of the given size. It allocates no more than the file has
// bytes, whatever lengths the file claims.
func read(r io.Reader, size int64) contents {
	var c contents
	if size == 0 {
		return c
	}
	in := bufio.NewReaderSize(r, 64<<10)

	start := make([]byte, min(size, int64(len(header))))
	if _, err := io.ReadFull(in, start); err != nil {
		c.Damage = fmt.Errorf("header: %w", err)
		return c
	}
	if string(start) != header {
		c.foreign = !strings.HasPrefix(header, string(start)) // else torn in its first write
		c.Damage = fmt.Errorf("the header is %q, not %q", start, header)
		return c
	}
	c.good = int64(len(header))

	var all []Entry
	open := map[uint64]int{} // where in all an entry is that is not done
	for c.good < size {
		kind, e, err := readRecord(in, size-c.good)
		if _, again := open[e.ID]; err == nil && again && kind == typeEntry {
			err = errors.New("the ID is in use")
		}
		if err != nil {
			c.Damage = fmt.Errorf("record at byte %d: %w; lost the last %d bytes", c.good, err, size-c.good)
			break
		}
		if kind == typeEntry {
			open[e.ID] = len(all)
			all = append(all, e)
		} else {
			delete(open, e.ID)
		}
		c.LastID = max(c.LastID, e.ID)
		c.good += e.size()
	}

	for i, e := range all {
		if at, ok := open[e.ID]; ok && at == i {
			c.Entries = append(c.Entries, e)
		}
	}
	return c
}

// readRecord reads the next record of a file that has rest more bytes.
func readRecord(in io.Reader, rest int64) (kind byte, e Entry, err error) {
	var prefix [prefixSize]byte
	if _, err := io.ReadFull(in, prefix[:]); err != nil {
		return 0, e, err
	}
	n := int64(binary.LittleEndian.Uint32(prefix[4:]))
	if n > rest-prefixSize || n > maxData { // before it is allocated
		return 0, e, errors.New("torn, or a wrong length")
	}
	e.Data = make([]byte, n)
	if _, err := io.ReadFull(in, e.Data); err != nil {
		return 0, e, err
	}
	sum := crc32.Update(crc32.Checksum(prefix[4:], castagnoli), castagnoli, e.Data)
	if sum != binary.LittleEndian.Uint32(prefix[:]) {
		return 0, e, errors.New("wrong checksum")
	}
	kind, e.ID = prefix[8], binary.LittleEndian.Uint64(prefix[9:])
	if kind != typeEntry && (kind != typeDone || n > 0) {
		return 0, e, errors.New("unknown type")
	}
	return kind, e, nil
}
