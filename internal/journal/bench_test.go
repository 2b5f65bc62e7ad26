package journal

import (
	"bytes"
	"fmt"
	"testing"
)

// events of the size that a controller sends
func some(n int) []Entry {
	out := make([]Entry, n)
	for i := range out {
		out[i] = Entry{ID: uint64(i), Data: bytes.Repeat([]byte("x"), 900)}
	}
	return out
}

// BenchmarkAppend adds n entries that take the place of the n before.
func BenchmarkAppend(b *testing.B) {
	for _, n := range []int{1, 100} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			j, _ := open(b, newPath(b))
			add, done := some(n), make([]uint64, n)
			b.SetBytes(int64(n) * add[0].size())
			b.ReportAllocs()
			for b.Loop() {
				for i := range add {
					done[i] = add[i].ID
					add[i].ID += uint64(n)
				}
				if err := j.Append(add, done); err != nil {
					b.Fatal(err)
				}
				if j.Size() > 64<<20 {
					mustDo(b, j.Rewrite(add))
				}
			}
		})
	}
}

func BenchmarkRewrite(b *testing.B) {
	j, _ := open(b, newPath(b))
	entries := some(10_000)
	b.ReportAllocs()
	for b.Loop() {
		mustDo(b, j.Rewrite(entries))
	}
}

func BenchmarkOpen(b *testing.B) {
	path := newPath(b)
	j, _ := open(b, path)
	mustDo(b, j.Append(some(10_000), nil))
	b.ReportAllocs()
	for b.Loop() {
		mustDo(b, j.Close())
		var err error
		if j, _, err = Open(path); err != nil {
			b.Fatal(err)
		}
	}
	mustDo(b, j.Close())
}
