package journal

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
)

func init() { children["full"] = fillTheDisk }

const fileLimit = 10_000

// fillTheDisk runs in a process of its own, where no file may be longer than the
// limit: a write is cut short there and then fails, as on a full disk.
func fillTheDisk(path string) int {
	signal.Ignore(syscall.SIGXFSZ)
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		return fail(err)
	}
	setLimit := func(bytes uint64) error {
		return syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: bytes, Max: limit.Max})
	}
	j, _, err := Open(path)
	if err != nil {
		return fail(err)
	}
	sized := func(id uint64, n int) Entry { return Entry{ID: id, Data: bytes.Repeat([]byte{byte(id)}, n)} }
	err = errors.Join(
		setLimit(fileLimit),
		j.Append([]Entry{sized(1, 4000), sized(2, 4000)}, nil),
		wantFull(j.Append([]Entry{sized(3, 1000), sized(4, 4000)}, []uint64{1})),
		wantLength(path, fileLimit), // the write was cut short
		wantFull(j.Append([]Entry{sized(3, 4000)}, nil)),
		j.Append([]Entry{sized(5, 100)}, nil), // which fits
		wantFull(j.Rewrite([]Entry{sized(1, 4000), sized(2, 4000), sized(3, 4000)})),
		j.Append([]Entry{sized(6, 100)}, nil),
		wantFull(j.Append([]Entry{sized(3, 4000)}, nil)),
		setLimit(limit.Cur),
		j.Append([]Entry{sized(3, 4000)}, []uint64{1}),
		wantLength(path, j.Size()),
		j.Close(),
	)
	if err != nil {
		return fail(err)
	}
	return 0
}

func wantFull(err error) error {
	if !errors.Is(err, syscall.EFBIG) {
		return fmt.Errorf("got %v, want EFBIG", err)
	}
	return nil
}

func wantLength(path string, want int64) error {
	info, err := os.Stat(path)
	if err == nil && info.Size() != want {
		err = fmt.Errorf("the file has %d bytes, want %d", info.Size(), want)
	}
	return err
}

func TestAFullDiskFailsTheCallAndNothingElse(t *testing.T) {
	path := newPath(t)
	if err := command("full", path).Run(); err != nil {
		t.Fatal(err)
	}
	wantFiles(t, path, "journal", "journal.lock")
	_, found := open(t, path)
	if found.Damage != nil {
		t.Error(found.Damage)
	}
	if got := fmt.Sprint(ids(found.Entries)); got != "[2 5 6 3]" {
		t.Errorf("got entries %s", got)
	}
}

func TestADirectoryThatTakesNoFilesIsAnErrorOfOpen(t *testing.T) {
	_, _, err := Open("/proc/self/journal")
	wantError(t, err, "/proc/self/journal")
}

func TestAPipeIsAnErrorOfOpenAndNotAWait(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	mustDo(t, syscall.Mkfifo(path, 0o600))
	_, _, err := Open(path)
	wantError(t, err, path, "not a regular file")
}
