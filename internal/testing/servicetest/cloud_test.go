package servicetest_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
)

// cloud is a cloud that ends with the test. Its sandboxes are in memory.
func cloud(t *testing.T) *servicetest.Cloud {
	t.Helper()
	c := servicetest.NewCloud(fake.New(fake.Options{SnapshotDir: t.TempDir()}), servicetest.Statuses{
		Starting: "starting", Running: "running", Stopping: "stopping", Stopped: "stopped", Failed: "failed", Deleted: "deleted",
	})
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return c
}

// makeSandbox creates a sandbox from a snapshot; nil: from nothing.
func makeSandbox(t *testing.T, c *servicetest.Cloud, owner, name string, from *servicetest.Snapshot) *servicetest.CloudSandbox {
	t.Helper()
	b, err := c.Create(servicetest.Sandbox{ID: servicetest.NewID(), Name: name, Owner: owner}, from)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// files are those of a sandbox that runs.
func files(t *testing.T, c *servicetest.Cloud, b *servicetest.CloudSandbox) driver.FileSystem {
	t.Helper()
	in, _, err := c.Machine(b)
	if err != nil {
		t.Fatal(err)
	}
	fs, err := servicetest.Files(in)
	if err != nil {
		t.Fatal(err)
	}
	return fs
}

// A name is one of an owner, and only an ID finds what was deleted.
func TestFind(t *testing.T) {
	c := cloud(t)
	mine, theirs := makeSandbox(t, c, "me", "one", nil), makeSandbox(t, c, "them", "two", nil)
	if _, err := c.Create(servicetest.Sandbox{ID: servicetest.NewID(), Name: "one", Owner: "me"}, nil); !errors.Is(err, servicetest.ErrTaken) {
		t.Errorf("another one: %v", err)
	}
	id := c.Show(theirs).ID
	for _, tt := range []struct {
		owner, name string
		want        *servicetest.CloudSandbox // nil: none
	}{
		{"me", "one", mine},
		{"me", "two", nil},
		{"me", id, nil},
		{"them", id, theirs},
		{"", "one", mine},
		{"", "two", theirs},
		{"", "three", nil},
	} {
		if got, err := c.Find(tt.owner, tt.name); got != tt.want || errors.Is(err, servicetest.ErrMissing) != (tt.want == nil) {
			t.Errorf("%q of %q: %v, %v", tt.name, tt.owner, got, err)
		}
	}
	if err := c.Delete(theirs); err != nil {
		t.Fatal(err)
	}
	if got, err := c.Find("", "two"); !errors.Is(err, servicetest.ErrMissing) {
		t.Errorf("a deleted one by its name: %v, %v", got, err)
	}
	if got, err := c.Find("", id); got != theirs || err != nil {
		t.Errorf("a deleted one by its ID: %v, %v", got, err)
	}
}

// A snapshot has the files of its sandbox, and what the client asked for.
func TestSave(t *testing.T) {
	c := cloud(t)
	b := makeSandbox(t, c, "me", "one", nil)
	if _, err := files(t, c, b).Write(t.Context(), "/tmp/note", strings.NewReader("saved"), driver.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Save(b, servicetest.Snapshot{ID: "s-1", Name: "first", Request: "asked"}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Save(b, servicetest.Snapshot{ID: "s-2", Name: "first"}); !errors.Is(err, servicetest.ErrTaken) {
		t.Errorf("the same name again: %v", err)
	}
	if _, err := c.Snapshot("them", "first"); !errors.Is(err, servicetest.ErrMissing) {
		t.Errorf("of another owner: %v", err)
	}
	s, err := c.Snapshot("me", "first")
	if err != nil {
		t.Fatal(err)
	}
	if s.ID != "s-1" || s.Request != "asked" || s.Sandbox != c.Show(b).ID || s.Owner != "me" || !s.Ready {
		t.Errorf("the snapshot is %+v", s)
	}
	copied := makeSandbox(t, c, "me", "two", s)
	body, _, err := files(t, c, copied).Read(t.Context(), "/tmp/note", driver.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if text, err := io.ReadAll(body); string(text) != "saved" || err != nil {
		t.Errorf("its copy has %q, %v", text, err)
	}
	if err := errors.Join(c.Forget(s), c.Stop(b)); err != nil {
		t.Fatal(err)
	}
	if len(c.Snapshots("")) > 0 {
		t.Errorf("%v are left", c.Snapshots(""))
	}
	if _, err := c.Save(b, servicetest.Snapshot{ID: "s-3", Name: "third"}); !errors.Is(err, servicetest.ErrConflict) {
		t.Errorf("a stopped one: %v", err)
	}
}
