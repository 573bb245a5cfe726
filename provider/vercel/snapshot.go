package vercel

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
)

var (
	_ driver.RestingSnapshotter = Instance{}
	_ driver.SnapshotCopier     = (*Provider)(nil)
)

// Instance is a sandbox of the service, which a guest inside makes usable.
type Instance struct{ hosted.Savable }

// AtRest implements driver.RestingSnapshotter: the service stops a sandbox to save
// it.
func (Instance) AtRest() {}

// saver saves the files of sandboxes. The service ends a session by saving it, so
// the session shows which snapshot is ours: snapshots have no names.
type saver struct{ p *Provider }

// source is what a new sandbox is made from.
type source struct {
	Type     string `json:"type"`
	Snapshot string `json:"snapshotId"`
}

const (
	fromSnapshot = "snapshot"
	snapshotting = "snapshotting" // the status of a sandbox that is being saved
)

// saved is the service's description of a snapshot. Times are milliseconds.
type saved struct {
	ID      string `json:"id"`
	Session string `json:"sourceSessionId"`
	Status  string `json:"status"`
	Size    int64  `json:"sizeBytes"`
	Created int64  `json:"createdAt"`
	Expires int64  `json:"expiresAt"`
}

// created is the status of a complete snapshot, and discarded that of one that was
// removed.
const (
	created   = "created"
	discarded = "deleted"
)

// kept reports whether a snapshot does not expire, as those of Atoll. The ones that
// the service takes of a sandbox that stops expire.
func (s saved) kept() bool { return s.Expires == 0 }

func (s saved) describe() hosted.Saved {
	return hosted.Saved{
		Data: s.ID, Kind: driver.SnapshotFilesystem, Status: s.Status, Ready: s.Status == created, Size: max(1, s.Size), Created: time.UnixMilli(s.Created),
	}
}

// absent reports that the service itself says that there is no such snapshot.
func absent(err error) bool {
	r := rest.RefusalOf(err)
	return missing(err) || r.Ours && r.Status == http.StatusGone
}

// usableID matches ids of the service that are valid in a path.
var usableID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)

const snapshots = "/v2/sandboxes/snapshots"

// saves returns the snapshots of a sandbox, also those that the service took when
// it stopped.
func (a *api) saves(ctx context.Context, sb string) ([]saved, error) {
	q := a.query("project", "name", nameOf(sb), "limit", "50")
	return hosted.Chained(&a.Client, func(cursor string) (found []saved, next string, err error) {
		if cursor != "" {
			q.Set("cursor", cursor)
		}
		var page struct {
			Items []saved `json:"snapshots"`
			Pages struct {
				Next string `json:"next"`
			} `json:"pagination"`
		}
		err = a.Call(ctx, http.MethodGet, snapshots+"?"+q.Encode(), nil, &page)
		if err == nil && page.Items == nil {
			err = a.ProtocolError("the service's list is invalid")
		}
		for _, s := range page.Items {
			if s.Status != discarded && usableID.MatchString(s.ID) {
				found = append(found, s)
			}
		}
		return found, page.Pages.Next, err
	})
}

// forget removes a snapshot, or returns hosted.ErrNone.
func (a *api) forget(ctx context.Context, id string) error {
	err := a.Remove(ctx, snapshots+"/"+id+"?"+a.query("").Encode())
	if absent(err) {
		err = hosted.ErrNone
	}
	return err
}

// Owns implements hosted.Saver.
func (saver) Owns(data string) bool { return usableID.MatchString(data) }

// Referred implements hosted.Saver.
func (k saver) Referred(ctx context.Context, data string) (hosted.Saved, error) {
	var said struct{ Snapshot saved }
	err := k.p.api.Call(ctx, http.MethodGet, snapshots+"/"+data+"?"+k.p.api.query("").Encode(), nil, &said)
	switch {
	case absent(err), err == nil && said.Snapshot.Status == discarded:
		err = hosted.ErrNone
	case err == nil && said.Snapshot.ID != data:
		err = k.p.ProtocolError("the service answers for another snapshot")
	}
	return said.Snapshot.describe(), err
}

// Saved implements hosted.Saver. Only the records name the snapshots.
func (k saver) Saved(ctx context.Context, id string) ([]hosted.Saved, error) {
	if id == "" {
		k.tidy(ctx)
	}
	return k.p.Search(ctx, id, func(ctx context.Context, _ string, r hosted.SavedRecord) (hosted.Saved, error) {
		return k.ended(ctx, r)
	})
}

// ended returns the snapshot that has ended the session in a record.
func (k saver) ended(ctx context.Context, r hosted.SavedRecord) (hosted.Saved, error) {
	all, err := k.p.api.saves(ctx, r.ServiceID)
	for _, s := range all {
		if s.Session == r.Key && s.kept() {
			return s.describe(), nil
		}
	}
	if err == nil {
		err = hosted.ErrNone
	}
	return hosted.Saved{}, err
}

// Prepare implements hosted.Preparer. A sandbox that is stopped is started, because
// only one that runs can be saved.
func (k saver) Prepare(ctx context.Context, in *hosted.Instance, r *hosted.SavedRecord) (undo func(context.Context) error, err error) {
	b, err := k.p.api.get(ctx, in.Sandbox)
	if err == nil && b.Status != running {
		if err = in.Inside.Wake(ctx); err == nil {
			undo = func(ctx context.Context) error { return k.stop(ctx, in.Sandbox) }
			b, err = k.p.api.get(ctx, in.Sandbox)
		}
	}
	r.Key = b.Session
	return undo, err
}

// stop stops a sandbox, if it runs.
func (k saver) stop(ctx context.Context, sb string) error {
	b, err := k.p.api.get(ctx, sb)
	if err == nil && b.Status == running {
		err = k.p.api.Call(ctx, http.MethodPost, sessionPath(b.Session)+"/stop?"+k.p.api.query("").Encode(), struct{}{}, nil)
	}
	return err
}

// Still implements hosted.Stiller. Nothing changes between the snapshot and the
// end of the sandbox, which the snapshot stops.
func (saver) Still(context.Context, *hosted.Instance, bool) error { return nil }

// Save implements hosted.Saver.
func (k saver) Save(ctx context.Context, _ *hosted.Instance, _ string, r *hosted.SavedRecord) (hosted.Saved, error) {
	return k.take(ctx, r)
}

// take saves the session in a record. It requests the snapshot once. If the answer
// is lost, it looks for the snapshot by the session.
func (k saver) take(ctx context.Context, r *hosted.SavedRecord) (out hosted.Saved, err error) {
	var said struct{ Snapshot saved }
	forever := map[string]int{"expiration": 0}
	err = k.p.api.Call(ctx, http.MethodPost, sessionPath(r.Key)+"/snapshot?"+k.p.api.query("").Encode(), forever, &said)
	if err != nil && sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		return out, err
	}
	if s := said.Snapshot; err == nil && s.Session == r.Key && usableID.MatchString(s.ID) {
		if out = s.describe(); !s.kept() {
			err = k.p.ProtocolError("the service does not confirm that it keeps the snapshot")
		} else if !out.Ready {
			err = k.p.ProtocolError("the service says that the snapshot is " + s.Status)
		}
		return out, err
	}
	return k.p.Await(ctx, err, func() (hosted.Saved, error) {
		b, looked := k.p.api.get(ctx, r.ServiceID) // first: the snapshot may be complete a moment later
		s, err := k.ended(ctx, *r)
		if errors.Is(err, hosted.ErrNone) && looked == nil && b.Status == snapshotting {
			return hosted.Saved{Status: snapshotting, Coming: true}, nil
		}
		return s, err
	})
}

// Forget implements hosted.Saver.
func (k saver) Forget(ctx context.Context, data string) error { return k.p.api.forget(ctx, data) }

// Copy implements hosted.Saver.
func (k saver) Copy(ctx context.Context, spec *sandbox.Spec, s hosted.Saved, _ bool) (driver.Instance, error) {
	in, err := k.p.make(ctx, spec, creation{Source: &source{fromSnapshot, s.Data}})
	if absent(err) {
		err = &sandbox.Error{Code: sandbox.CodeNotFound, Subject: s.Data, Message: "the service has no such snapshot", Cause: err}
	}
	return in, err
}

// CopySnapshot implements driver.SnapshotCopier. The service copies no snapshots,
// so a sandbox is made from the snapshot, saved and removed.
func (p *Provider) CopySnapshot(ctx context.Context, ref driver.SnapshotRef, id string) (driver.Snapshot, error) {
	return p.CopyAs(ctx, ref, id, func(ctx context.Context, from hosted.Saved, r *hosted.SavedRecord) (s hosted.Saved, err error) {
		k := saver{p}
		prefix, err := k.copies()
		if err != nil {
			return s, err
		}
		c := creation{
			Project: p.opts.Project, Name: prefix + id, Source: &source{fromSnapshot, from.Data}, Region: p.opts.Region, Timeout: longest.Milliseconds(),
			Tags: map[string]string{}, Policy: policyFor(nil),
		}
		b, err := p.request(ctx, sandbox.ID(id), &c)
		if err == nil {
			r.ServiceID, r.Key = b.id(), b.Session
			s, err = k.take(ctx, r)
		}
		if b.Name != "" {
			err = errors.Join(err, k.drop(ctx, b.id(), err != nil))
		}
		return s, err
	})
}

const (
	// copying begins the names of sandboxes that exist only to copy a snapshot, and
	// longest is how long they do.
	copying = "copy-"
	longest = 30 * time.Minute
)

// copies begins the names of the sandboxes that copy snapshots of this directory.
func (k saver) copies() (string, error) {
	scope, err := k.p.Scope()
	return copying + names.Of(scope, ""), err
}

// drop ends a sandbox that copies a snapshot. If that failed, the copy goes, too.
func (k saver) drop(ctx context.Context, sb string, failed bool) error {
	all, err := []saved{}, error(nil)
	if failed {
		all, err = k.p.api.saves(ctx, sb)
	}
	for _, s := range all {
		if err == nil {
			if err = k.p.api.forget(ctx, s.ID); errors.Is(err, hosted.ErrNone) {
				err = nil
			}
		}
	}
	if err == nil {
		err = k.p.api.End(ctx, "", sb)
	}
	if errors.Is(err, hosted.ErrNone) {
		err = nil
	}
	return err
}

// tidy removes what copying has left long ago.
func (k saver) tidy(ctx context.Context) {
	prefix, err := k.copies()
	if err != nil {
		return
	}
	p, _ := k.p.api.page(ctx, k.p.api.query("project", "namePrefix", prefix, "sortBy", "name", "limit", "50"))
	for _, b := range p.Items {
		if strings.HasPrefix(b.Name, prefix) && time.Since(time.UnixMilli(b.Created)) > 2*longest {
			_ = k.drop(ctx, b.id(), true) // else the next time
		}
	}
}

// sessionPath is the path of a session.
func sessionPath(session string) string { return "/v2/sandboxes/sessions/" + url.PathEscape(session) }
