package modal

import (
	"context"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/modalapi"
	"github.com/atoll-run/atoll/provider/internal/hosted"
	"github.com/atoll-run/atoll/provider/internal/rpc"
	"github.com/atoll-run/atoll/sandbox"
)

// SnapshotPauses implements driver.SnapshotPauser: the service pauses a sandbox
// while it takes a snapshot.
func (p *Provider) SnapshotPauses() bool { return true }

// saver saves the files of running sandboxes as images of the service, with
// names by which they are found. The service reports no sizes: the records have
// what was used on the disk.
type saver struct{ p *Provider }

// names are the names of images. What follows the colon is a tag.
const names = hosted.Names(":")

func (k saver) describe(name string, created float64) hosted.Saved {
	_, id, _ := names.Parse(name)
	return hosted.Saved{
		Data: name, ID: string(id), Kind: driver.SnapshotFilesystem, Ready: true, Size: max(1, k.p.Record(string(id)).Size),
		Created: time.UnixMicro(int64(created * 1e6)),
	}
}

// Owns implements hosted.Saver: it refuses a name of another directory.
func (k saver) Owns(data string) bool { return k.p.Named(names, data) }

// tag is the name of an image with its environment.
func (k saver) tag(name string) string {
	if k.p.api.environment == "" {
		return name
	}
	return k.p.api.environment + "/" + name
}

// image returns the image with a name.
func (k saver) image(ctx context.Context, name string) (string, error) {
	var got modalapi.ImageRef
	err := call(ctx, k.p.api, "ImageGetByTag", &modalapi.ImageName{Tag: k.tag(name)}, &got)
	switch {
	case rpc.Missing(err):
		err = hosted.ErrNone
	case err == nil && got.ID == "":
		err = k.p.ProtocolError("the service names no image")
	}
	return got.ID, err
}

// Referred implements hosted.Saver.
func (k saver) Referred(ctx context.Context, data string) (hosted.Saved, error) {
	_, err := k.image(ctx, data)
	return k.describe(data, 0), err
}

// Saved implements hosted.Saver.
func (k saver) Saved(ctx context.Context, id string) (found []hosted.Saved, err error) {
	scope, err := k.p.Scope()
	if err != nil {
		return nil, err
	}
	if id != "" {
		s, err := k.Referred(ctx, names.Of(scope, sandbox.ID(id)))
		return []hosted.Saved{s}, err
	}
	req := modalapi.TagsRequest{Environment: k.p.api.environment, Prefix: names.Of(scope, ""), Max: 100}
	return hosted.Chained(k.p.API, func(cursor string) (found []hosted.Saved, next string, err error) {
		var page modalapi.Tags
		req.Page = cursor
		err = call(ctx, k.p.api, "ImageListTags", &req, &page)
		for _, item := range page.Items {
			if k.Owns(item.Tag) {
				found = append(found, k.describe(item.Tag, item.Created))
			}
		}
		return found, page.Next, err
	})
}

// Save implements hosted.Saver. Both requests can be repeated.
func (k saver) Save(ctx context.Context, in *hosted.Instance, id string, r *hosted.SavedRecord) (out hosted.Saved, err error) {
	scope, err := k.p.Scope()
	if err != nil {
		return out, err
	}
	sb, ok := in.Inside.(*inside)
	if !ok {
		return out, k.p.ProtocolError("the sandbox is not one of this provider")
	}
	used, err := in.Usage(ctx)
	if err != nil {
		return out, err
	}
	var made modalapi.Snapshot
	forever := int64(-1)
	err = ask(ctx, sb, "TaskSnapshotFilesystem", func(task string) *modalapi.SnapshotRequest {
		return &modalapi.SnapshotRequest{Task: task, ID: r.Key, TTL: &forever}
	}, &made)
	if err == nil && made.Image == "" {
		err = k.p.ProtocolError("the service names no image")
	}
	if err != nil {
		return out, err
	}
	name := names.Of(scope, sandbox.ID(id))
	err = call(ctx, k.p.api, "ImagePublish", &modalapi.ImageTag{ID: made.Image, Tag: k.tag(name)}, &modalapi.Empty{})
	if err != nil {
		_ = k.remove(ctx, made.Image) // nothing names it
		return out, err
	}
	out = k.describe(name, float64(time.Now().Unix()))
	out.Size = max(1, used.Disk)
	return out, nil
}

func (k saver) remove(ctx context.Context, image string) error {
	err := call(ctx, k.p.api, "ImageDelete", &modalapi.ImageRef{ID: image}, &modalapi.Empty{})
	if rpc.Missing(err) {
		err = nil
	}
	return err
}

// Forget implements hosted.Saver. The name goes last, because it leads to the
// image.
func (k saver) Forget(ctx context.Context, data string) error {
	image, err := k.image(ctx, data)
	if err == nil {
		err = k.remove(ctx, image)
	}
	if err != nil {
		return err
	}
	err = call(ctx, k.p.api, "ImageNameDelete", &modalapi.ImageName{Tag: k.tag(data)}, &modalapi.Empty{})
	if rpc.Missing(err) {
		err = nil
	}
	return err
}

// Copy implements hosted.Saver.
func (k saver) Copy(ctx context.Context, spec *sandbox.Spec, s hosted.Saved, _ bool) (driver.Instance, error) {
	image, err := k.image(ctx, s.Data)
	if err != nil {
		return nil, err
	}
	return k.p.make(ctx, spec, hosted.TemplateScheme+image, hosted.Copied(true))
}
