package snapshots

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/blob"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/core/coretest"
	"github.com/atoll-run/atoll/internal/control/providers"
	"github.com/atoll-run/atoll/internal/engine"
	"github.com/atoll-run/atoll/internal/snapshotstore/archive"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

var errAway = &sandbox.Error{Code: sandbox.CodeUnavailable, Message: "the service is away"}

// errLost is the error for data that is not here or is damaged.
var errLost = &sandbox.Error{Code: sandbox.CodeNotFound, Message: "no such snapshot", Cause: driver.ErrSnapshotLost}

// courier is a provider whose snapshots are texts, which it exports and imports. Its
// calls fail as those of coretest.Provider do; "break ID" fails after some bytes.
type courier struct {
	*coretest.Provider
	texts map[string]string
	sizes map[string]int64 // as it lists them
	used  map[string]time.Time
	// exporting, if set, is called by each export.
	exporting func()
	did       []string
	away      bool // it cannot say what it has
}

func (c *courier) do(what string) error {
	if err := c.Fails[what]; err != nil {
		return err
	}
	c.did = append(c.did, what)
	return nil
}

// done returns what was done since the last call.
func (c *courier) done() string {
	did := strings.Join(c.did, ", ")
	c.did = nil
	return did
}

func (c *courier) FindSnapshot(_ context.Context, id string) (driver.Snapshot, error) {
	if c.away {
		return driver.Snapshot{}, errAway
	}
	if _, ok := c.texts[id]; !ok {
		return driver.Snapshot{}, errLost
	}
	return driver.Snapshot{Ref: coretest.Ref(id, false)}, nil
}

func (c *courier) RemoveSnapshot(_ context.Context, ref driver.SnapshotRef) error {
	if err := c.do("remove " + ref.Data); err != nil {
		return err
	}
	delete(c.texts, ref.Data)
	return nil
}

func (c *courier) Snapshots(context.Context) iter.Seq2[driver.FoundSnapshot, error] {
	return func(yield func(driver.FoundSnapshot, error) bool) {
		for id := range c.texts {
			f := coretest.SnapshotOf(id, false)
			f.Size, f.Used = c.sizes[id], c.used[id]
			if !yield(f, nil) {
				return
			}
		}
	}
}

func (c *courier) ExportSnapshot(_ context.Context, ref driver.SnapshotRef, w io.Writer) error {
	if c.exporting != nil {
		c.exporting()
	}
	text, ok := c.texts[ref.Data]
	if !ok {
		return errLost
	}
	if err := c.do("export " + ref.Data); err != nil {
		return err
	}
	tw := tar.NewWriter(w)
	err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "data", Size: int64(len(text)), Mode: 0o600})
	if err == nil {
		_, err = io.WriteString(tw, text)
	}
	if broken := c.Fails["break "+ref.Data]; err == nil && broken != nil {
		return broken
	}
	return errors.Join(err, tw.Close())
}

func (c *courier) ImportSnapshot(_ context.Context, id string, r io.Reader) (driver.Snapshot, error) {
	tr := tar.NewReader(r)
	h, err := tr.Next()
	if err != nil || h.Name != "data" {
		return driver.Snapshot{}, &sandbox.Error{Code: sandbox.CodeInvalid, Message: "this is no snapshot"}
	}
	text, err := io.ReadAll(tr)
	if err == nil {
		_, err = tr.Next()
	}
	if !errors.Is(err, io.EOF) {
		return driver.Snapshot{}, &sandbox.Error{Code: sandbox.CodeInvalid, Message: "this snapshot is not complete"}
	}
	if err := c.do("import"); err != nil {
		return driver.Snapshot{}, err
	}
	c.texts[id] = string(text)
	return driver.Snapshot{Ref: coretest.Ref(id, false), Size: int64(len(text))}, nil
}

// secretive is a provider with snapshots that it does not give away.
type secretive struct {
	driver.Provider
	driver.SnapshotKeeper
}

// office is the service of snapshots, with a courier as its provider and an archive in a
// directory.
type office struct {
	*Service
	courier *courier
	blobs   string
}

// newOffice returns an office. change, if set, changes its configuration, and with keeps
// the provider from exporting.
func newOffice(t *testing.T, keeps bool, change func(*Config)) *office {
	t.Helper()
	o := &office{blobs: t.TempDir(), courier: &courier{Provider: &coretest.Provider{Fails: map[string]error{}}, texts: map[string]string{}, sizes: map[string]int64{}}}
	c := coretest.Open(t)
	blobs, err := blob.Open(t.Context(), "dir:"+o.blobs)
	coretest.OK(t, err)
	var p driver.Provider = o.courier
	if keeps {
		p = secretive{o.courier, o.courier}
	}
	cfg := Config{Archive: archive.New(blobs, bytes.Repeat([]byte{7}, 32)), Scratch: t.TempDir()}
	cfg.Providers = providers.New(c, providers.Config{Default: providers.Opened{Name: "fake", Binding: "account-1", Engine: engine.Config{Provider: p}}})
	if change != nil {
		change(&cfg)
	}
	o.Service = New(c, cfg)
	return o
}

// keep records a snapshot of Acme with the same name, and gives the provider its text.
func (o *office) keep(t *testing.T, id, text string) store.Snapshot {
	t.Helper()
	o.courier.texts[id] = text
	s := store.Snapshot{Snapshot: durable.Snapshot{ID: id, Name: id, Provider: "fake", Image: "debian:12"}, Node: coretest.Node, Binding: "account-1"}
	s.Spec.User = "app"
	coretest.OK(t, o.Store.Update(t.Context(), func(tx *store.Tx) error {
		if _, err := tx.Snapshots().Create(t.Context(), coretest.Acme, s); err != nil {
			return err
		}
		return tx.Snapshots().Finish(t.Context(), coretest.Acme, id, Taken(driver.Snapshot{Ref: coretest.Ref(id, false)}))
	}))
	return o.get(t, id)
}

func (o *office) get(t *testing.T, id string) store.Snapshot {
	t.Helper()
	s, err := o.record(t.Context(), id)
	coretest.OK(t, err)
	return s
}

// forgetRecord removes a record, as the removal of a snapshot does.
func (o *office) forgetRecord(t *testing.T, id string) {
	t.Helper()
	coretest.OK(t, o.Store.Update(t.Context(), func(tx *store.Tx) error { return tx.Snapshots().Delete(t.Context(), coretest.Acme, id) }))
}

// recorded returns the ids of the snapshots of this node.
func (o *office) recorded(t *testing.T) (all []string) {
	t.Helper()
	found, err := store.Read(t.Context(), o.Store, func(tx *store.Tx) ([]store.Snapshot, error) {
		return tx.Operator().Snapshots(t.Context(), coretest.Node, "", 100)
	})
	coretest.OK(t, err)
	for _, s := range found {
		all = append(all, s.ID)
	}
	return all
}

// archived returns what the archives have, as VERSION NOTE.
func (o *office) archived(t *testing.T) (all []string) {
	t.Helper()
	sets, err := store.Read(t.Context(), o.Store, func(tx *store.Tx) ([]store.Archive, error) { return tx.Operator().Archives(t.Context()) })
	coretest.OK(t, err)
	for _, a := range sets {
		kept, err := o.cfg.Archive.List(t.Context(), archive.Set{ID: a.ID, Encrypted: a.Encrypted})
		coretest.OK(t, err)
		for _, k := range kept {
			all = append(all, fmt.Sprint(k.Version, " ", k.Note))
		}
	}
	slices.Sort(all)
	return all
}

// spoil removes the contents of all archives.
func (o *office) spoil(t *testing.T) {
	t.Helper()
	removed := 0
	coretest.OK(t, filepath.WalkDir(o.blobs, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.Contains(path, "/packs/") {
			return err
		}
		removed++
		return os.Remove(path)
	}))
	if removed == 0 {
		t.Fatal("the archive has no packs, want some to spoil")
	}
}

// crashing stops the operation at a fault point, as in a crash.
func crashing(c *core.Core, at string) {
	c.Fault = func(point string) error {
		if point == at {
			return errors.New("crash")
		}
		return nil
	}
}
