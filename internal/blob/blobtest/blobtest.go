// Package blobtest tests implementations of blob.Store, and starts a real S3
// server for tests.
package blobtest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/atoll-run/atoll/internal/blob"
	"github.com/atoll-run/atoll/sandbox"
)

// Run tests an empty store.
func Run(t *testing.T, open func(t *testing.T) blob.Store) {
	cases := []struct {
		name string
		test func(*testing.T, blob.Store)
	}{
		{"what is put can be read", roundTrip},
		{"ranges", ranges},
		{"a reader that fails changes nothing", failingReader},
		{"a wrong size is refused", wrongSize},
		{"a name is taken once", ifAbsent},
		{"one of many writers wins", race},
		{"listing is ordered and by prefix", listing},
		{"deleting", deleting},
		{"keys that are none", badKeys},
		{"a canceled context", canceled},
		{"large and of unknown size", large},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.test(t, open(t)) })
	}
}

func put(t *testing.T, s blob.Store, key, content string, opts blob.PutOptions) {
	t.Helper()
	if err := s.Put(t.Context(), key, strings.NewReader(content), opts); err != nil {
		t.Fatalf("put %s: %v", key, err)
	}
}

func get(t *testing.T, s blob.Store, key string, offset, length int64) string {
	t.Helper()
	r, err := s.Get(t.Context(), key, offset, length)
	if err != nil {
		t.Fatalf("get %s: %v", key, err)
	}
	defer func() { _ = r.Close() }()
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatalf("read %s: %v", key, err)
	}
	return string(b)
}

func wantCode(t *testing.T, err error, code sandbox.Code) {
	t.Helper()
	if sandbox.CodeOf(err) != code {
		t.Errorf("the code is %q, want %q: %v", sandbox.CodeOf(err), code, err)
	}
}

func roundTrip(t *testing.T, s blob.Store) {
	put(t, s, "a/b/c", "first", blob.PutOptions{})
	put(t, s, "a/b/c", "second, longer", blob.PutOptions{Size: 14})
	put(t, s, "empty", "", blob.PutOptions{})
	if got := get(t, s, "a/b/c", 0, -1); got != "second, longer" {
		t.Errorf("read %q", got)
	}
	if got := get(t, s, "empty", 0, -1); got != "" {
		t.Errorf("the empty blob holds %q", got)
	}
	info, err := s.Stat(t.Context(), "a/b/c")
	if err != nil || info.Key != "a/b/c" || info.Size != 14 || info.Modified.IsZero() {
		t.Errorf("stat: %+v, %v", info, err)
	}
	_, err = s.Stat(t.Context(), "a/b/missing")
	wantCode(t, err, sandbox.CodeNotFound)
	_, err = s.Get(t.Context(), "a/b/missing", 0, -1)
	wantCode(t, err, sandbox.CodeNotFound)
	_, err = s.Stat(t.Context(), "a/b") // a directory is no blob
	wantCode(t, err, sandbox.CodeNotFound)
}

func ranges(t *testing.T, s blob.Store) {
	put(t, s, "r", "0123456789", blob.PutOptions{})
	for _, c := range []struct {
		offset, length int64
		want           string
	}{
		{0, 1, "0"},
		{0, 10, "0123456789"},
		{3, 4, "3456"},
		{3, -1, "3456789"},
		{8, 100, "89"},
		{10, -1, ""},
		{99, 5, ""},
		{2, 0, ""},
	} {
		if got := get(t, s, "r", c.offset, c.length); got != c.want {
			t.Errorf("from %d, %d bytes: %q, want %q", c.offset, c.length, got, c.want)
		}
	}
}

var errBroken = errors.New("the source broke")

func failingReader(t *testing.T, s blob.Store) {
	put(t, s, "f", "good", blob.PutOptions{})
	for _, opts := range []blob.PutOptions{{}, {Size: 1 << 20}} {
		broken := io.MultiReader(strings.NewReader("half of it"), &failing{})
		if err := s.Put(t.Context(), "f", broken, opts); !errors.Is(err, errBroken) {
			t.Errorf("put said %v", err)
		}
		if got := get(t, s, "f", 0, -1); got != "good" {
			t.Errorf("afterwards the blob holds %q", got)
		}
	}
	none := io.MultiReader(strings.NewReader("x"), &failing{})
	if err := s.Put(t.Context(), "new", none, blob.PutOptions{IfAbsent: true}); !errors.Is(err, errBroken) {
		t.Errorf("put said %v", err)
	}
	_, err := s.Stat(t.Context(), "new")
	wantCode(t, err, sandbox.CodeNotFound)
}

type failing struct{}

func (*failing) Read([]byte) (int, error) { return 0, errBroken }

func wrongSize(t *testing.T, s blob.Store) {
	err := s.Put(t.Context(), "w", strings.NewReader("four"), blob.PutOptions{Size: 5})
	wantCode(t, err, sandbox.CodeInvalid)
	_, err = s.Stat(t.Context(), "w")
	wantCode(t, err, sandbox.CodeNotFound)
	put(t, s, "w", "four", blob.PutOptions{Size: 3})
	if got := get(t, s, "w", 0, -1); got != "fou" {
		t.Errorf("three bytes of four are %q", got)
	}
}

func ifAbsent(t *testing.T, s blob.Store) {
	put(t, s, "once", "first", blob.PutOptions{IfAbsent: true})
	err := s.Put(t.Context(), "once", strings.NewReader("second"), blob.PutOptions{IfAbsent: true})
	wantCode(t, err, sandbox.CodeAlreadyExists)
	if got := get(t, s, "once", 0, -1); got != "first" {
		t.Errorf("the blob holds %q", got)
	}
	if err := s.Delete(t.Context(), "once"); err != nil {
		t.Fatal(err)
	}
	put(t, s, "once", "third", blob.PutOptions{IfAbsent: true})
}

// race lets writers compete for names, while some of them delete directories.
func race(t *testing.T, s blob.Store) {
	for range 5 {
		var won atomic.Int32
		var all sync.WaitGroup
		for writer := range 8 {
			all.Go(func() {
				content := strings.Repeat(string(rune('a'+writer)), 1000)
				err := s.Put(t.Context(), "race/name", strings.NewReader(content), blob.PutOptions{IfAbsent: true})
				switch {
				case err == nil:
					won.Add(1)
				case sandbox.CodeOf(err) != sandbox.CodeAlreadyExists:
					t.Errorf("a loser got %v", err)
				}
			})
		}
		all.Wait()
		if won.Load() != 1 {
			t.Errorf("%d writers won", won.Load())
		}
		if got := get(t, s, "race/name", 0, -1); len(got) != 1000 || strings.Trim(got, got[:1]) != "" {
			t.Errorf("the blob is a mixture: %.20q…, %d bytes", got, len(got))
		}
		if err := s.Delete(t.Context(), "race/name"); err != nil {
			t.Fatal(err)
		}
	}
}

func keys(t *testing.T, s blob.Store, prefix string) []string {
	t.Helper()
	var found []string
	for info, err := range s.List(t.Context(), prefix) {
		if err != nil {
			t.Fatalf("list %q: %v", prefix, err)
		}
		found = append(found, info.Key)
	}
	return found
}

func listing(t *testing.T, s blob.Store) {
	all := []string{"a-b", "a.b", "a/1", "a/2/x", "a/20", "a0", "b/z"}
	for _, k := range slices.Backward(all) {
		put(t, s, k, "x", blob.PutOptions{})
	}
	for _, c := range []struct {
		prefix string
		want   []string
	}{
		{"", all},
		{"a/", []string{"a/1", "a/2/x", "a/20"}},
		{"a/2", []string{"a/2/x", "a/20"}},
		{"a", all[:6]},
		{"nothing/here", nil},
		{"b/z", []string{"b/z"}},
	} {
		if got := keys(t, s, c.prefix); !slices.Equal(got, c.want) {
			t.Errorf("below %q: %q, want %q", c.prefix, got, c.want)
		}
	}
	for range s.List(t.Context(), "") {
		break // a listing can be left
	}
	below := blob.Below(s, "a")
	put(t, below, "3", "three", blob.PutOptions{})
	if got := keys(t, below, "2"); !slices.Equal(got, []string{"2/x", "20"}) {
		t.Errorf("a part of the store lists %q", got)
	}
	if got := get(t, s, "a/3", 0, -1); got != "three" {
		t.Errorf("what was put into a part is %q", got)
	}
}

func deleting(t *testing.T, s blob.Store) {
	put(t, s, "d/e/f", "x", blob.PutOptions{})
	for range 2 { // the second time it is missing
		if err := s.Delete(t.Context(), "d/e/f"); err != nil {
			t.Fatal(err)
		}
	}
	if got := keys(t, s, ""); len(got) != 0 {
		t.Errorf("%q are left", got)
	}
	put(t, s, "d", "the directory went with its last blob", blob.PutOptions{})
}

func badKeys(t *testing.T, s blob.Store) {
	long := strings.Repeat("k", blob.MaxKeyLen+1)
	for _, k := range []string{"", "/", "/a", "a/", "a//b", "..", "../a", "a/../b", ".", "a/.b", ".pending/x", "a b", "a\x00", "ä", "a\\b", long} {
		wantCode(t, s.Put(t.Context(), k, strings.NewReader("x"), blob.PutOptions{}), sandbox.CodeInvalid)
		_, err := s.Get(t.Context(), k, 0, -1)
		wantCode(t, err, sandbox.CodeInvalid)
		_, err = s.Stat(t.Context(), k)
		wantCode(t, err, sandbox.CodeInvalid)
		wantCode(t, s.Delete(t.Context(), k), sandbox.CodeInvalid)
	}
}

func canceled(t *testing.T, s blob.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := s.Put(ctx, "c", bytes.NewReader(make([]byte, 1<<20)), blob.PutOptions{})
	wantCode(t, err, sandbox.CodeCanceled)
	_, err = s.Stat(t.Context(), "c")
	wantCode(t, err, sandbox.CodeNotFound)
}

// large is more than one part of an S3 upload.
func large(t *testing.T, s blob.Store) {
	content := bytes.Repeat([]byte("0123456789abcdef"), 40<<16)
	if err := s.Put(t.Context(), "large", io.MultiReader(bytes.NewReader(content)), blob.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := get(t, s, "large", 0, -1); got != string(content) {
		t.Errorf("%d bytes came back, want %d", len(got), len(content))
	}
	most := bytes.NewReader(content[:blob.MaxIfAbsent])
	if err := s.Put(t.Context(), "most", most, blob.PutOptions{IfAbsent: true}); err != nil {
		t.Error(err)
	}
	err := s.Put(t.Context(), "more", bytes.NewReader(content[:blob.MaxIfAbsent+1]), blob.PutOptions{IfAbsent: true})
	wantCode(t, err, sandbox.CodeInvalid)
	_, err = s.Stat(t.Context(), "more")
	wantCode(t, err, sandbox.CodeNotFound)
}
