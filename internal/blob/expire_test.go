package blob_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/blob"
	"github.com/atoll-run/atoll/sandbox"
)

// renewing writes a blob again when it is looked at before its removal, and fails to
// remove another one.
type renewing struct {
	blob.Store
	renewed, kept string
}

var errKept = errors.New("it cannot be removed")

func (r renewing) Stat(ctx context.Context, key string) (blob.Info, error) {
	if key == r.renewed {
		if err := r.Put(ctx, key, strings.NewReader("again"), blob.PutOptions{}); err != nil {
			return blob.Info{}, err
		}
	}
	return r.Store.Stat(ctx, key)
}

func (r renewing) Delete(ctx context.Context, key string) error {
	if key == r.kept {
		return errKept
	}
	return r.Store.Delete(ctx, key)
}

// Only what is older than the limit goes, by the store's clock. What somebody
// reads meanwhile is read to its end.
func TestExpire(t *testing.T) {
	dir := t.TempDir()
	s, err := blob.OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for key, age := range map[string]time.Duration{
		"images/a/old": 100, "images/a/young": 50, "images/old": 100, "images/renewed": 100, "images/kept": 100, "images/future": -5, "snapshots/old": 100,
	} {
		if err := s.Put(t.Context(), key, strings.NewReader("content"), blob.PutOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(filepath.Join(dir, key), time.Time{}, time.Now().Add(-age*24*time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	reading, err := s.Get(t.Context(), "images/old", 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer reading.Close()
	n, err := blob.Expire(t.Context(), blob.Below(renewing{s, "images/renewed", "images/kept"}, "images"), 90*24*time.Hour)
	if n != 2 || !errors.Is(err, errKept) {
		t.Errorf("removed %d, %v; want 2, and the error of the one that cannot be", n, err)
	}
	var left []string
	for info, err := range s.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, info.Key)
	}
	if want := []string{"images/a/young", "images/expired", "images/future", "images/kept", "images/renewed", "snapshots/old"}; !slices.Equal(left, want) {
		t.Errorf("left: %q, want %q", left, want)
	}
	text := make([]byte, 10)
	if n, _ := reading.Read(text); string(text[:n]) != "content" {
		t.Errorf("its reader reads %q", text[:n])
	}
	if _, err := blob.Expire(t.Context(), unwritable{s}, time.Nanosecond); sandbox.CodeOf(err) != sandbox.CodeDenied {
		t.Errorf("a store whose time is unknown: %v", err)
	}
}

type unwritable struct{ blob.Store }

func (unwritable) Put(context.Context, string, io.Reader, blob.PutOptions) error {
	return &sandbox.Error{Code: sandbox.CodeDenied}
}
