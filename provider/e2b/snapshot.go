package e2b

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/bounds"
)

var _ driver.SnapshotPauser = (*Provider)(nil)

// SnapshotPauses implements driver.SnapshotPauser: the service pauses a sandbox
// while it takes a snapshot, and drops its connections.
func (p *Provider) SnapshotPauses() bool { return true }

// saver saves sandboxes, which continue. A snapshot of ours has the name
// atoll-SCOPE-ID and the tag KIND-SIZE: the service reports neither kind nor
// size. To the service it is a template.
type saver struct{ p *Provider }

const names = hosted.Names("-")

// The kinds in a tag.
const (
	tagFiles  = "files"
	tagMemory = "memory"
)

// shot is the service's description of a snapshot.
type shot struct {
	ID    string   `json:"snapshotID"`
	Names []string `json:"names"`
}

// describe converts a snapshot of the service. Without an ID it is not ours.
func (s shot) describe(scope string) hosted.Saved {
	out := hosted.Saved{Data: s.ID, Kind: driver.SnapshotFilesystem, Ready: true}
	for _, whole := range s.Names {
		name, tag, _ := strings.Cut(whole[strings.LastIndexByte(whole, '/')+1:], ":")
		kind, size, _ := strings.Cut(tag, "-")
		if own, id, ours := names.Parse(name); ours && own == scope {
			if out.ID = string(id); kind == tagMemory {
				out.Kind = driver.SnapshotMemory
			}
			out.Size, _ = strconv.ParseInt(size, 10, 64)
		}
	}
	return out
}

// Owns implements hosted.Saver.
func (saver) Owns(data string) bool {
	id, tag, _ := strings.Cut(data, ":")
	return id != "" && len(data) <= 2*bounds.MaxLabelLen && !strings.ContainsAny(id+tag, "?#%\\") && strings.Trim(id, "./") == id && !strings.Contains(id, "..")
}

// Saved implements hosted.Saver.
func (k saver) Saved(ctx context.Context, _ string) (found []hosted.Saved, err error) {
	scope, err := k.p.Scope()
	if err != nil {
		return nil, err
	}
	items, err := all[shot](ctx, k.p.api, "/snapshots", url.Values{})
	for _, s := range items {
		found = append(found, s.describe(scope))
	}
	return found, err
}

// Referred implements hosted.Saver.
func (k saver) Referred(ctx context.Context, data string) (hosted.Saved, error) {
	found, err := k.Saved(ctx, "")
	if err != nil {
		return hosted.Saved{}, err
	}
	return hosted.ByData(found, data)
}

// Forget implements hosted.Saver.
func (k saver) Forget(ctx context.Context, data string) error {
	id, _, _ := strings.Cut(data, ":")
	err := k.p.api.Call(ctx, http.MethodDelete, "/templates/"+url.PathEscape(id), nil, nil)
	if missing(err) {
		err = hosted.ErrNone
	}
	return err
}

// pauseWait limits requests to pause or to take a snapshot. The service answers
// them when everything is written.
const pauseWait = 5 * time.Minute

// Still implements hosted.Stiller. A paused sandbox is success.
func (k saver) Still(ctx context.Context, in *hosted.Instance, memory bool) error {
	ctx, cancel := context.WithTimeout(ctx, pauseWait)
	defer cancel()
	err := k.p.api.post(ctx, in.Sandbox, "pause", map[string]bool{"memory": memory})
	if sandbox.CodeOf(err) == sandbox.CodeConflict {
		if b, asked := k.p.api.get(ctx, in.Sandbox); asked == nil && b.State == statePaused {
			err = nil
		}
	}
	return err
}

// Save implements hosted.Saver.
func (k saver) Save(ctx context.Context, in *hosted.Instance, id string, r *hosted.SavedRecord) (out hosted.Saved, err error) {
	scope, err := k.p.Scope()
	if err != nil {
		return out, err
	}
	memory, kind, size := r.Kind == driver.SnapshotMemory, tagFiles, int64(1) // of a paused sandbox, which cannot be measured
	if inside, ok := in.Inside.(*inside); ok {
		if m, err := inside.metrics(ctx); err == nil {
			if size = max(size, int64(m.DiskUsed)); memory {
				size += int64(m.MemUsed)
			}
		}
	}
	if memory {
		kind = tagMemory
	}
	name := fmt.Sprintf("%s:%s-%d", names.Of(scope, sandbox.ID(id)), kind, size)
	ctx, cancel := context.WithTimeout(ctx, pauseWait)
	defer cancel()
	var made shot
	err = k.p.api.Call(ctx, http.MethodPost, "/sandboxes/"+in.Sandbox+"/snapshots", map[string]any{"name": name, "memory": memory}, &made)
	if err == nil && made.ID == "" {
		err = k.p.ProtocolError("the service's response contains no snapshot id")
	}
	made.Names = []string{name} // the service may change it
	return made.describe(scope), err
}

// Copy implements hosted.Saver. The service cannot discard the memory.
func (k saver) Copy(ctx context.Context, spec *sandbox.Spec, s hosted.Saved, bare bool) (driver.Instance, error) {
	return k.p.make(ctx, spec, s.Data, hosted.Copied(bare && s.Kind == driver.SnapshotMemory))
}
