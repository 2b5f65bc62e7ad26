package journal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
)

func newPath(t testing.TB) string { return filepath.Join(t.TempDir(), "journal") }

func open(t testing.TB, path string) (*Journal, Recovered) {
	t.Helper()
	j, found, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	return j, found
}

// mustDo fails the test at an error of a step that only prepares it.
func mustDo(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func entry(id uint64) Entry {
	return Entry{ID: id, Data: fmt.Appendf(nil, "data of %d%s", id, strings.Repeat(".", int(id%7)))}
}

func entries(ids ...uint64) []Entry {
	var out []Entry
	for _, id := range ids {
		out = append(out, entry(id))
	}
	return out
}

func wantEntries(t testing.TB, got, want []Entry) {
	t.Helper()
	if !slices.EqualFunc(got, want, func(a, b Entry) bool { return a.ID == b.ID && bytes.Equal(a.Data, b.Data) }) {
		t.Fatalf("got entries %v, want %v", got, want)
	}
}

// wantContents closes j, and opens the file again to see what is in it.
func wantContents(t testing.TB, j *Journal, want []Entry) Recovered {
	t.Helper()
	mustDo(t, j.Close())
	again, found := open(t, j.path)
	if found.Damage != nil {
		t.Errorf("damage: %v", found.Damage)
	}
	wantEntries(t, found.Entries, want)
	mustDo(t, again.Close())
	return found
}

func wantError(t testing.TB, err error, texts ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("error %q does not contain %q", err, text)
		}
	}
	if rest, ok := strings.CutPrefix(err.Error(), "journal: "); !ok || strings.HasPrefix(rest, "journal: ") {
		t.Errorf("error %q does not name the package once", err)
	}
}

func TestEntriesThatAreNotDoneComeBackInTheOrderOfTheirAddition(t *testing.T) {
	j, found := open(t, newPath(t))
	if found.Entries != nil || found.LastID != 0 || found.Damage != nil {
		t.Errorf("a new journal holds %+v", found)
	}
	mustDo(t, j.Append(entries(5, 3, 9), nil))
	mustDo(t, j.Append(entries(1, 12), []uint64{3, 12}))
	mustDo(t, j.Append(nil, []uint64{9, 9, 77}))
	mustDo(t, j.Append(entries(3), nil)) // an ID is free again once it is done
	found = wantContents(t, j, entries(5, 1, 3))
	if found.LastID != 12 {
		t.Errorf("LastID = %d, want 12", found.LastID)
	}
}

func TestAnEntryMayBeEmptyOrLarge(t *testing.T) {
	j, _ := open(t, newPath(t))
	want := []Entry{{ID: 0}, {ID: 1<<64 - 1, Data: bytes.Repeat([]byte("x"), 3*bufferKept)}, {ID: 7, Data: []byte{0}}}
	mustDo(t, j.Append(want, nil))
	if cap(j.buf) > bufferKept {
		t.Errorf("a buffer of %d bytes is kept", cap(j.buf))
	}
	wantContents(t, j, want)
}

func TestAnEntryThatIsThereAlreadyIsRefusedWithTheWholeCall(t *testing.T) {
	j, _ := open(t, newPath(t))
	mustDo(t, j.Append(entries(1), nil))
	size, live := j.Size(), j.LiveBytes()
	wantError(t, j.Append(entries(2, 1), []uint64{1}), "entry 1 is there already")
	wantError(t, j.Append(entries(2, 2), nil), "entry 2 is there already")
	wantError(t, j.Rewrite(entries(4, 4)), "entry 4 is there already")
	if j.Size() != size || j.LiveBytes() != live {
		t.Errorf("size %d, live %d, want %d, %d", j.Size(), j.LiveBytes(), size, live)
	}
	mustDo(t, j.Append(entries(2), nil))
	wantContents(t, j, entries(1, 2))
}

func TestDataThatIsTooLongIsRefused(t *testing.T) {
	if strconv.IntSize == 32 {
		t.Skip("needs the address space of 64 bits")
	}
	j, _ := open(t, newPath(t))
	data := make([]byte, maxData+1) // never touched, so it costs no memory
	wantError(t, j.Append([]Entry{{ID: 1, Data: data}}, nil), "entry 1 has 1073741825 bytes")
	mustDo(t, j.Append(entries(1), nil))
	wantContents(t, j, entries(1))
}

func TestSizeAndLiveBytesSayWhatARewriteWouldSave(t *testing.T) {
	path := newPath(t)
	j, _ := open(t, path)
	want := func(size, live int64) {
		t.Helper()
		info, err := os.Stat(path)
		mustDo(t, err)
		if j.Size() != size || j.LiveBytes() != live || info.Size() != size {
			t.Errorf("Size() = %d, LiveBytes() = %d, file %d; want %d, %d", j.Size(), j.LiveBytes(), info.Size(), size, live)
		}
	}
	const one = prefixSize + 100
	data := make([]byte, 100)
	want(0, 0)
	mustDo(t, j.Append(nil, []uint64{1}))
	want(0, 0)
	mustDo(t, j.Append([]Entry{{1, data}, {2, data}}, nil))
	want(17+2*one, 2*one)
	mustDo(t, j.Append([]Entry{{3, data}}, []uint64{1, 3, 4}))
	want(17+3*one+2*prefixSize, one)

	mustDo(t, j.Close())
	j, _ = open(t, path)
	want(17+3*one+2*prefixSize, one)
	mustDo(t, j.Rewrite([]Entry{{2, data}}))
	want(17+one, one)
	mustDo(t, j.Rewrite(nil))
	want(0, 0)
}

func TestAJournalWithNothingLeftIsAnEmptyFile(t *testing.T) {
	path := newPath(t)
	j, _ := open(t, path)
	mustDo(t, j.Append(entries(1, 2), nil))
	mustDo(t, j.Append(nil, []uint64{1, 2}))
	mustDo(t, j.Close())
	wantFile(t, path, "")
}

func TestRewriteKeepsWhatItIsGivenAndAppendGoesOn(t *testing.T) {
	path := newPath(t)
	j, _ := open(t, path)
	mustDo(t, j.Append(entries(1, 2, 3), nil))
	mustDo(t, j.Rewrite(entries(3, 7)))
	mustDo(t, j.Append(entries(1), []uint64{3}))
	wantFiles(t, path, "journal", "journal.lock")
	wantContents(t, j, entries(7, 1))

	j, _ = open(t, path)
	var many []Entry // more than one write
	for id := range uint64(100) {
		many = append(many, Entry{ID: id, Data: bytes.Repeat([]byte{byte(id)}, 10_000)})
	}
	mustDo(t, j.Rewrite(many))
	mustDo(t, j.Append(nil, []uint64{50}))
	wantContents(t, j, slices.Delete(many, 50, 51))
}

func TestFilesAreForTheOwnerOnly(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no such modes")
	}
	dir := filepath.Join(t.TempDir(), "gone")
	path := filepath.Join(dir, "journal")
	mustDo(t, os.Mkdir(dir, 0o755))
	j, _ := open(t, path)
	wantMode := func(path string, want fs.FileMode) {
		t.Helper()
		info, err := os.Stat(path)
		mustDo(t, err)
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %o, want %o", filepath.Base(path), info.Mode().Perm(), want)
		}
	}
	wantMode(path, 0o600)
	wantMode(path+".lock", 0o600)
	mustDo(t, j.Rewrite(entries(1)))
	wantMode(path, 0o600)
	mustDo(t, os.RemoveAll(dir))
	mustDo(t, j.Rewrite(entries(1)))
	wantMode(dir, 0o700)
}

func TestAClosedJournalRefusesToWork(t *testing.T) {
	path := newPath(t)
	j, _ := open(t, path)
	mustDo(t, j.Append(entries(1), nil))
	mustDo(t, j.Close())
	mustDo(t, j.Close())
	for _, err := range []error{j.Append(entries(2), nil), j.Rewrite(nil)} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("got %v, want os.ErrClosed", err)
		}
		wantError(t, err)
	}
	_, found := open(t, path)
	wantEntries(t, found.Entries, entries(1))
}

func TestTheSecondToOpenIsTold(t *testing.T) {
	path := newPath(t)
	j, _ := open(t, path)
	mustDo(t, j.Append(entries(1), nil))
	_, _, err := Open(path)
	if !errors.Is(err, ErrLocked) {
		t.Errorf("got %v, want ErrLocked", err)
	}
	wantError(t, err, path)
	mustDo(t, j.Append(entries(2), nil)) // and the first goes on
	wantContents(t, j, entries(1, 2))
}

func TestWhatCannotBeUsedIsAnErrorOfOpen(t *testing.T) {
	dir := t.TempDir()
	mustDo(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	mustDo(t, os.Mkdir(filepath.Join(dir, "directory"), 0o700))
	for _, name := range []string{"missing/journal", "file/journal", "directory"} {
		path := filepath.Join(dir, filepath.FromSlash(name))
		_, _, err := Open(path)
		wantError(t, err, path)
	}
}

func TestAnOpenThatFailsLeavesTheFileAlone(t *testing.T) {
	path := newPath(t)
	mustDo(t, os.WriteFile(path, []byte("events journal 2\nabc"), 0o600))
	mustDo(t, os.MkdirAll(filepath.Join(path+".unreadable", "full"), 0o700)) // so the file cannot be kept
	_, _, err := Open(path)
	wantError(t, err, path)
	wantFile(t, path, "events journal 2\nabc")
	mustDo(t, os.RemoveAll(path+".unreadable"))
	open(t, path) // the lock was released
}

func TestAFileWithAnotherHeaderIsKeptAside(t *testing.T) {
	for _, old := range []string{"events journal 2\nabc", "#!/bin/sh\n", "x", "events journal 1 \n"} {
		path := newPath(t)
		mustDo(t, os.WriteFile(path+".unreadable", []byte("an older one"), 0o600))
		mustDo(t, os.WriteFile(path, []byte(old), 0o600))
		j, found := open(t, path)
		wantError(t, found.Damage, path+".unreadable", fmt.Sprintf("%q", old[:min(len(old), 17)]))
		wantEntries(t, found.Entries, nil)
		wantFile(t, path+".unreadable", old)
		mustDo(t, j.Append(entries(1), nil))
		wantContents(t, j, entries(1))
	}
}

func TestWhatAKilledRewriteLeftIsRemoved(t *testing.T) {
	path := newPath(t)
	mustDo(t, os.WriteFile(path+".tmp", []byte("half of a fi"), 0o600))
	j, _ := open(t, path)
	wantFiles(t, path, "journal", "journal.lock")
	mustDo(t, os.WriteFile(path+".tmp", []byte("half of a fi"), 0o600))
	mustDo(t, j.Rewrite(entries(1)))
	wantFiles(t, path, "journal", "journal.lock")
	wantContents(t, j, entries(1))
}

func TestARewriteThatFailsLeavesTheOldFileInUse(t *testing.T) {
	path := newPath(t)
	j, _ := open(t, path)
	mustDo(t, j.Append(entries(1, 2), nil))
	obstacle := filepath.Join(path+".tmp", "full")
	mustDo(t, os.MkdirAll(obstacle, 0o700))
	wantError(t, j.Rewrite(entries(2)), path+".tmp")
	mustDo(t, j.Append(entries(3), []uint64{2}))
	wantContents(t, j, entries(1, 3))
}

func TestAppendCutsOffWhatAFailedWriteLeft(t *testing.T) {
	path := newPath(t)
	for _, piece := range []string{"x", header, strings.Repeat("\x00", 1000)} {
		j, found := open(t, path)
		mustDo(t, j.Append(entries(found.LastID+1), nil))
		grow(t, path, piece)
		want := append(found.Entries, entry(found.LastID+1), entry(found.LastID+2))
		mustDo(t, j.Append(entries(found.LastID+2), nil))
		info, err := os.Stat(path)
		mustDo(t, err)
		if info.Size() != j.Size() {
			t.Errorf("the file has %d bytes, want %d", info.Size(), j.Size())
		}
		wantContents(t, j, want)
	}
	j, found := open(t, path)
	grow(t, path, "x")
	wantContents(t, j, found.Entries) // Close cuts it off as well
}

func TestAFileThatIsGoneFailsAppendsUntilItIsRewritten(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows removes no open file")
	}
	for name, harm := range map[string]func(path string) error{
		"file removed":      os.Remove,
		"directory removed": func(path string) error { return os.RemoveAll(filepath.Dir(path)) },
		"file replaced": func(path string) error {
			return errors.Join(os.Remove(path), os.WriteFile(path, make([]byte, 1000), 0o600))
		},
		"file cut":                 func(path string) error { return os.Truncate(path, 20) },
		"a directory in its place": func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "directory", "journal")
			mustDo(t, os.Mkdir(filepath.Dir(path), 0o700))
			j, _ := open(t, path)
			mustDo(t, j.Append(entries(1, 2), nil))
			mustDo(t, harm(path))
			wantError(t, j.Append(entries(3), nil))
			wantError(t, j.Append(entries(3), nil))
			if name == "a directory in its place" {
				wantError(t, j.Rewrite(entries(1, 2, 3)))
				wantError(t, j.Append(entries(4), nil), "Rewrite starts it anew")
				mustDo(t, os.Remove(path))
			}
			mustDo(t, j.Rewrite(entries(1, 2, 3)))
			mustDo(t, j.Append(entries(4), []uint64{2}))

			if _, _, err := Open(path); !errors.Is(err, ErrLocked) {
				t.Errorf("after the harm the lock does not hold: %v", err)
			}
			wantContents(t, j, entries(1, 3, 4))
		})
	}
}

func TestRewriteDoesNotTakeAFileBackFromSomebodyElse(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows removes no open file")
	}
	for _, removed := range []string{"journal.lock", "journal journal.lock"} {
		path := newPath(t)
		first, _ := open(t, path)
		mustDo(t, first.Append(entries(1), nil))
		for _, name := range strings.Fields(removed) {
			mustDo(t, os.Remove(filepath.Join(filepath.Dir(path), name)))
		}
		second, found := open(t, path)

		if err := first.Rewrite(entries(1)); !errors.Is(err, ErrLocked) {
			t.Errorf("got %v, want ErrLocked", err)
		}
		wantError(t, first.Append(entries(3), nil))
		mustDo(t, first.Close())
		mustDo(t, second.Append(entries(2), nil))
		wantContents(t, second, append(found.Entries, entry(2)))
	}
}

// example is a small journal of several adds and dones. It returns the file, and
// for each length of it the entries of the records that are whole within it.
func example(t testing.TB) (file []byte, whole func(length int) []Entry) {
	path := newPath(t)
	j, _ := open(t, path)
	type state struct {
		end     int
		entries []Entry
	}
	states := []state{{}}
	steps := []struct{ add, done uint64 }{{add: 1}, {add: 2}, {done: 1}, {add: 3}, {add: 4}, {done: 3}, {add: 1}, {done: 2}, {add: 5}}
	var live []Entry
	for _, s := range steps {
		if s.add > 0 {
			mustDo(t, j.Append(entries(s.add), nil))
			live = append(live, entry(s.add))
		} else {
			mustDo(t, j.Append(nil, []uint64{s.done}))
			live = slices.DeleteFunc(live, func(e Entry) bool { return e.ID == s.done })
		}
		states = append(states, state{int(j.Size()), slices.Clone(live)})
	}
	mustDo(t, j.Close())
	file, err := os.ReadFile(path)
	mustDo(t, err)
	return file, func(length int) []Entry {
		i := len(states) - 1
		for states[i].end > length {
			i--
		}
		return states[i].entries
	}
}

// wantUsable opens a file of these contents, wants the entries, and goes on with it.
func wantUsable(t *testing.T, path string, file []byte, want []Entry, damaged bool) {
	t.Helper()
	_ = os.Remove(path) // to write over a file is slow, on some file systems
	_ = os.Remove(path + ".unreadable")
	mustDo(t, os.WriteFile(path, file, 0o600))
	j, found, err := Open(path)
	mustDo(t, err)
	defer j.Close()
	if info, err := os.Stat(path); err != nil || info.Size() != j.Size() {
		t.Fatalf("the rest is not cut off: %v, want %d bytes (%v)", info, j.Size(), err)
	}
	wantEntries(t, found.Entries, want)
	if damaged != (found.Damage != nil) {
		t.Fatalf("damaged is %v, found %v", damaged, found.Damage)
	}
	add := Entry{ID: found.LastID + 1, Data: []byte("new")}
	mustDo(t, j.Append([]Entry{add}, nil))
	mustDo(t, j.Close())

	j, found, err = Open(path)
	mustDo(t, err)
	defer j.Close()
	if found.Damage != nil {
		t.Fatalf("damaged after it was opened: %v", found.Damage)
	}
	wantEntries(t, found.Entries, append(slices.Clone(want), add))
}

func TestEachCutLeavesTheEntriesBeforeIt(t *testing.T) {
	file, whole := example(t)
	path := newPath(t)
	for length := range len(file) + 1 {
		clean := length == 0 || length >= len(header) && endsARecord(file, length)
		wantUsable(t, path, file[:length], whole(length), !clean)
		wantFiles(t, path, "journal", "journal.lock") // a torn header is no other version
	}
}

// endsARecord walks the lengths in a file that is known to be sound.
func endsARecord(file []byte, end int) bool {
	at := len(header)
	for at < end {
		at += prefixSize + int(file[at+4])
	}
	return at == end
}

func TestEachFlippedBitLeavesTheEntriesBeforeIt(t *testing.T) {
	file, whole := example(t)
	path := newPath(t)
	for bit := range len(file) * 8 {
		file[bit/8] ^= 1 << (bit % 8)
		length := bit / 8
		if length < len(header) {
			length = 0
		}
		wantUsable(t, path, file, whole(length), true)
		file[bit/8] ^= 1 << (bit % 8)
	}
}

func TestARecordThatNobodyWroteDoesNotCheck(t *testing.T) {
	before := appendRecord([]byte(header), typeEntry, 4, []byte("four"))
	for name, record := range map[string][]byte{
		"unknown type":     appendRecord(nil, 3, 5, nil),
		"type 0":           appendRecord(nil, 0, 5, nil),
		"zeros":            make([]byte, 4096),
		"done with data":   appendRecord(nil, typeDone, 4, []byte("x")),
		"ID that is there": appendRecord(nil, typeEntry, 4, []byte("five")),
	} {
		t.Run(name, func(t *testing.T) {
			file := appendRecord(append(slices.Clone(before), record...), typeDone, 4, nil)
			wantUsable(t, newPath(t), file, []Entry{{ID: 4, Data: []byte("four")}}, true)
		})
	}
}

func TestWhatTheDiskCannotReadIsDamage(t *testing.T) {
	file, whole := example(t)
	broken := errors.New("input/output error")
	for length := range file {
		r := io.MultiReader(bytes.NewReader(file[:length]), iotest.ErrReader(broken))
		c := read(r, int64(len(file)))
		wantEntries(t, c.Entries, whole(length))
		if !errors.Is(c.Damage, broken) || c.foreign || c.good > int64(length) {
			t.Fatalf("after %d bytes: %+v", length, c)
		}
	}
}

func TestALengthOfGigabytesAllocatesNothing(t *testing.T) {
	for _, n := range []string{"\xff\xff\xff\x3f", "\xff\xff\xff\x7f", "\xff\xff\xff\xff"} {
		file := header + "\x00\x00\x00\x00" + n + "\x01" + strings.Repeat("\x00", 8)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		c := read(strings.NewReader(file), int64(len(file)))
		runtime.ReadMemStats(&after)
		if got := after.TotalAlloc - before.TotalAlloc; got > 1<<20 {
			t.Errorf("allocated %d bytes", got)
		}
		if c.Damage == nil || c.good != int64(len(header)) {
			t.Errorf("read %+v", c)
		}
	}
}

func TestTheFormatIsAsDocumented(t *testing.T) {
	path := newPath(t)
	j, _ := open(t, path)
	mustDo(t, j.Append([]Entry{{ID: 258, Data: []byte("ab")}, {ID: 1}}, []uint64{258}))
	mustDo(t, j.Close())
	wantFile(t, path, "events journal 1\n"+
		"\xc4\xd0\xdf\x7f"+"\x02\x00\x00\x00"+"\x01"+"\x02\x01\x00\x00\x00\x00\x00\x00"+"ab"+
		"\x8b\x0e\x59\x01"+"\x00\x00\x00\x00"+"\x01"+"\x01\x00\x00\x00\x00\x00\x00\x00"+
		"\x03\xa9\xb1\xab"+"\x00\x00\x00\x00"+"\x02"+"\x02\x01\x00\x00\x00\x00\x00\x00")
}

func TestRandomStepsMatchANaiveTwin(t *testing.T) {
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 0))
		steps := make([]byte, 400)
		for i := range steps {
			steps[i] = byte(random.Uint32())
		}
		walk(t, steps)
	}
}

// walk takes the steps that the bytes stand for, with a journal and with a twin:
// the entries, and the state at the end of each record of the file.
func walk(t *testing.T, steps []byte) {
	path := newPath(t)
	j, _ := open(t, path)
	defer func() { _ = j.Close() }()
	var live []Entry
	states := map[int64][]Entry{0: nil} // by length of the file, since the last Rewrite
	last := uint64(0)
	next := func() (b int) {
		if len(steps) > 0 {
			b, steps = int(steps[0]), steps[1:]
		}
		return b
	}
	reopen := func() {
		var found Recovered
		var err error
		j, found, err = Open(path)
		mustDo(t, err)
		wantEntries(t, found.Entries, live)
		if found.LastID > last {
			t.Fatalf("LastID = %d, but the last entry was %d", found.LastID, last)
		}
	}
	for len(steps) > 0 {
		switch op := next(); op % 8 {
		default: // add some, some of them done
			var add []Entry
			var done []uint64
			end := j.Size()
			if end == 0 {
				end += int64(len(header))
				states[end] = nil
			}
			for range next() % 5 {
				last++
				e := Entry{ID: last, Data: bytes.Repeat([]byte{byte(last)}, next()%40)}
				add, live = append(add, e), append(live, e)
				end += e.size()
				states[end] = slices.Clone(live)
			}
			for range min(next()%5, len(live)) {
				i := next() % len(live)
				done = append(done, live[i].ID)
				live = slices.Delete(slices.Clone(live), i, i+1)
				end += prefixSize
				states[end] = live
			}
			mustDo(t, j.Append(add, done))
			if len(add)+len(done) > 0 && j.Size() != end {
				t.Fatalf("Size() = %d, want %d", j.Size(), end)
			}
		case 5:
			mustDo(t, j.Rewrite(live))
			states = map[int64][]Entry{0: nil}
			end := int64(len(header))
			states[end] = nil
			for i, e := range live {
				end += e.size()
				states[end] = slices.Clone(live[:i+1])
			}
		case 6: // the process ends, well or not; or a write fails and the process goes on
			switch next() % 3 {
			case 0:
				mustDo(t, j.Close())
				if len(live) == 0 {
					states = map[int64][]Entry{0: nil}
				}
			case 1:
				mustDo(t, j.release())
			default:
				grow(t, path, strings.Repeat("\x01", 1+next()))
				continue
			}
			reopen()
		case 7: // the process ends, and the tail is lost
			mustDo(t, j.release())
			file, err := os.ReadFile(path)
			mustDo(t, err)
			at := min(next()*(len(file)+1)/256, len(file))
			if op&8 == 0 || at == len(file) || at < len(header) {
				mustDo(t, os.Truncate(path, int64(at)))
			} else {
				file[at] ^= 1 << (next() % 8)
				mustDo(t, os.WriteFile(path, file, 0o600))
			}
			maps.DeleteFunc(states, func(end int64, _ []Entry) bool { return end > int64(at) })
			live = states[slices.Max(slices.Collect(maps.Keys(states)))]
			reopen()
		}
		var bytes int64
		for _, e := range live {
			bytes += e.size()
		}
		if j.LiveBytes() != bytes {
			t.Fatalf("LiveBytes() = %d, want %d", j.LiveBytes(), bytes)
		}
	}
	mustDo(t, j.Close())
	reopen()
}

func FuzzStepsMatchANaiveTwin(f *testing.F) {
	f.Add([]byte("\x00\x03\x05\x05\x05\x01\x00\x05\x06\x00\x07\x80\x00\x01\x08\x06\x02\x00\x01\x09\x00\x06\x01"))
	f.Fuzz(func(t *testing.T, steps []byte) { walk(t, steps[:min(len(steps), 300)]) })
}

// Whatever a file contains, it can be opened, and what is read is what is in it.
func FuzzOpenNeverRefuses(f *testing.F) {
	file, _ := example(f)
	f.Add(file)
	f.Add(file[:len(file)/2])
	f.Add([]byte(nil))
	f.Add([]byte(header))
	f.Add([]byte("events journal 2\n"))
	f.Add(append(slices.Clone(file), file[len(header):]...))
	f.Fuzz(func(t *testing.T, file []byte) {
		path := newPath(t)
		mustDo(t, os.WriteFile(path, file, 0o600))
		j, found := open(t, path)
		at := 0
		for _, e := range found.Entries {
			i := bytes.Index(file[at:], appendRecord(nil, typeEntry, e.ID, e.Data))
			if i < 0 {
				t.Fatalf("entry %v is not in the file", e)
			}
			at += i + int(e.size())
		}
		mustDo(t, j.Append(nil, ids(found.Entries)))
		mustDo(t, j.Append(entries(1), nil))
		wantContents(t, j, entries(1))
	})
}

// The same, but with checksums that are right, so that the fuzzer comes behind them.
func FuzzReadOfSoundRecords(f *testing.F) {
	f.Add([]byte("\x01\x05\x03abc\x02\x05\x00\x01\x05\x00\x01\x05\x00"))
	f.Fuzz(func(t *testing.T, steps []byte) {
		file := []byte(header)
		for len(steps) >= 3 {
			kind, id, n := steps[0], uint64(steps[1]), min(int(steps[2]), len(steps)-3)
			file = appendRecord(file, kind, id, steps[3:3+n])
			steps = steps[3+n:]
		}
		c := read(bytes.NewReader(file), int64(len(file)))
		if (c.Damage == nil) != (c.good == int64(len(file))) {
			t.Errorf("%d of %d bytes are good, and the damage is %v", c.good, len(file), c.Damage)
		}
		again := read(bytes.NewReader(file[:c.good]), c.good)
		if again.Damage != nil {
			t.Error(again.Damage)
		}
		wantEntries(t, again.Entries, c.Entries)
		seen := map[uint64]bool{}
		for _, e := range c.Entries {
			if seen[e.ID] || e.ID > c.LastID {
				t.Errorf("ID %d twice, or above %d", e.ID, c.LastID)
			}
			seen[e.ID] = true
		}
	})
}

func ids(entries []Entry) (out []uint64) {
	for _, e := range entries {
		out = append(out, e.ID)
	}
	return out
}

func grow(t testing.TB, path, piece string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	mustDo(t, err)
	_, err = f.WriteString(piece)
	mustDo(t, errors.Join(err, f.Close()))
}

func wantFile(t testing.TB, path, want string) {
	t.Helper()
	got, err := os.ReadFile(path)
	mustDo(t, err)
	if string(got) != want {
		t.Errorf("%s contains %q, want %q", filepath.Base(path), got, want)
	}
}

func wantFiles(t testing.TB, path string, want ...string) {
	t.Helper()
	list, err := os.ReadDir(filepath.Dir(path))
	mustDo(t, err)
	var got []string
	for _, f := range list {
		got = append(got, f.Name())
	}
	if !slices.Equal(got, want) {
		t.Errorf("files %q, want %q", got, want)
	}
}
