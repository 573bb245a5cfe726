package image

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// bucket has the blobs that the stores of a test share.
type bucket struct {
	mu    sync.Mutex
	blobs map[string][]byte
	fails bool
	age   time.Duration // of all blobs
	puts  int
}

func (b *bucket) Modified(context.Context, string) (time.Time, error) {
	return time.Now().Add(-b.age), nil
}

func (b *bucket) Get(_ context.Context, key string) (io.ReadCloser, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fails {
		return nil, errors.New("the bucket cannot be reached")
	}
	data, ok := b.blobs[key]
	if !ok {
		return nil, &sandbox.Error{Code: sandbox.CodeNotFound}
	}
	return io.NopCloser(bytes.NewReader(data)), nil
}

func (b *bucket) Put(_ context.Context, key string, r io.Reader, size int64) error {
	data, err := io.ReadAll(r)
	if err == nil && int64(len(data)) != size {
		err = errors.New("the size is another")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil && b.fails {
		err = errors.New("the bucket cannot be reached")
	}
	if err == nil {
		b.blobs[key] = data
		b.puts++
	}
	return err
}

// sharing opens a store that shares with others. Pulls are for the owner of the
// machine, or anonymous ones for others.
func sharing(t *testing.T, b *bucket, owner bool) *Store {
	t.Helper()
	s := open(t, Options{})
	s.Restrict(Restriction{Applies: func(context.Context) bool { return !owner }, Permit: func(netip.Addr) bool { return true }})
	s.Share(b)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// What one store pulled, another one gets from what they share: by digest without
// the registry, and by tag without its layers.
func TestSharedImages(t *testing.T) {
	reg, b := newRegistry(t), &bucket{blobs: map[string][]byte{}}
	ref := reg.push(t, "team/app:1", imageOf(t, "linux/amd64", tarOf(t, "a", "one"), tarOf(t, "b", noise(1, 1<<20))))
	first := sharing(t, b, false)
	img := mustGet(t, first, ref, GetOptions{Platform: "linux/amd64"})
	want := files(t, img)
	first.shared.uploads.Wait()
	if len(b.blobs) != 4 { // a manifest, a configuration and two layers
		t.Fatalf("shared: %v", slices.Sorted(maps.Keys(b.blobs)))
	}

	reg.requests()
	if got := files(t, mustGet(t, sharing(t, b, false), ref, GetOptions{Platform: "linux/amd64"})); !maps.Equal(got, want) {
		t.Errorf("by its tag: %v", got)
	}
	if paths := reg.requests(); count(paths, "/blobs/") != 0 {
		t.Errorf("the registry was asked for %v", paths)
	}
	// Without the bucket, the registry is enough.
	b.fails = true
	if got := files(t, mustGet(t, sharing(t, b, false), ref, GetOptions{Platform: "linux/amd64"})); !maps.Equal(got, want) {
		t.Errorf("without the bucket: %v", got)
	}
	b.fails = false
	reg.Close()
	pinned := strings.TrimSuffix(ref, ":1") + "@" + img.Digest
	if got := files(t, mustGet(t, sharing(t, b, false), pinned, GetOptions{Platform: "linux/amd64"})); !maps.Equal(got, want) {
		t.Errorf("by its digest, without the registry: %v", got)
	}
}

// What is read is written again if it is old, so that what is in use is never older
// than a little more than Renewal. What is young is not. The registry gives the
// manifest of a tag each time.
func TestSharedImagesRenewed(t *testing.T) {
	reg, b := newRegistry(t), &bucket{blobs: map[string][]byte{}}
	ref := reg.push(t, "team/app:1", imageOf(t, "linux/amd64", tarOf(t, "a", "one"), tarOf(t, "b", noise(1, 1<<20))))
	pull := func(owner bool) int {
		b.puts = 0
		s := sharing(t, b, owner)
		mustGet(t, s, ref, GetOptions{Platform: "linux/amd64"})
		s.shared.uploads.Wait()
		return b.puts
	}
	if n := pull(false); n != 4 {
		t.Fatalf("shared: %d, want 4", n)
	}
	for _, tt := range []struct {
		age   time.Duration
		owner bool
		want  int
	}{{0, false, 1}, {Renewal - time.Hour, false, 1}, {Renewal + time.Hour, false, 4}, {Renewal + time.Hour, true, 3}} {
		b.age = tt.age
		if n := pull(tt.owner); n != tt.want {
			t.Errorf("at the age of %v, owner %v: %d written again, want %d", tt.age, tt.owner, n, tt.want)
		}
	}
}

// Content in the bucket is worth as much as its digest: what is changed, cut off,
// longer or another's is not used. What a registry gives only to some, or another
// repository serves, is not shared.
func TestAttackSharedImages(t *testing.T) {
	reg, b := newRegistry(t), &bucket{blobs: map[string][]byte{}}
	ref := reg.push(t, "team/app:1", imageOf(t, "linux/amd64", tarOf(t, "a", "one"), tarOf(t, "b", noise(1, 1<<20))))
	owners := sharing(t, b, true)
	img := mustGet(t, owners, ref, GetOptions{Platform: "linux/amd64"})
	want := files(t, img)
	owners.shared.uploads.Wait()
	if len(b.blobs) != 0 {
		t.Errorf("a pull with the owner's login shared %v", slices.Sorted(maps.Keys(b.blobs)))
	}
	first := sharing(t, b, false)
	mustGet(t, first, ref, GetOptions{Platform: "linux/amd64"})
	first.shared.uploads.Wait()
	good := maps.Clone(b.blobs)

	pinned := strings.TrimSuffix(ref, ":1") + "@" + img.Digest
	trusted := strings.Replace(pinned, "team/app", "trusted/app", 1)
	_, err := sharing(t, b, false).Get(t.Context(), trusted, GetOptions{Platform: "linux/amd64"})
	wantCode(t, err, sandbox.CodeNotFound)

	for what, change := range map[string]func([]byte) []byte{
		"changed":   func(d []byte) []byte { d[len(d)/2] ^= 1; return d },
		"cut off":   func(d []byte) []byte { return d[:len(d)-1] },
		"longer":    func(d []byte) []byte { return append(d, 0) },
		"empty":     func([]byte) []byte { return nil },
		"another's": func([]byte) []byte { return slices.Clone(good[slices.Sorted(maps.Keys(good))[0]]) },
	} {
		for _, key := range slices.Sorted(maps.Keys(good)) {
			b.blobs = maps.Clone(good)
			b.blobs[key] = change(slices.Clone(good[key]))
			if bytes.Equal(b.blobs[key], good[key]) {
				continue
			}
			s := sharing(t, b, false)
			if got := files(t, mustGet(t, s, pinned, GetOptions{Platform: "linux/amd64"})); !maps.Equal(got, want) {
				t.Errorf("%s of %s gives %v", what, key, got)
			}
			s.shared.uploads.Wait()
			if !bytes.Equal(b.blobs[key], good[key]) {
				t.Errorf("%s of %s is not mended", what, key)
			}
		}
	}
	b.blobs = maps.Clone(good)
	for key := range b.blobs {
		b.blobs[key] = []byte("forged")
	}
	reg.Close()
	if img, err := sharing(t, b, false).Get(t.Context(), pinned, GetOptions{Platform: "linux/amd64"}); err == nil {
		t.Errorf("forged content gives %+v", img)
	}
}
