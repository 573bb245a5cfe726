package modal

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/atoll-run/atoll/internal/modalapi"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
)

// owns checks that an image exists.
func (s *Server) owns(owner, id string) error {
	if _, err := s.Snapshot(owner, id); err == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.images[id] != owner || owner == "" {
		return fail(connect.CodeNotFound, "Image "+id+" not found")
	}
	return nil
}

// image starts to build an image. Its ID is the same for the same commands.
func (s *Server) image(_ context.Context, owner string, in *modalapi.ImageRequest) (*modalapi.Image, error) {
	if err := s.hasApp(owner, in.App); err != nil {
		return nil, err
	}
	if in.Image == nil || len(in.Image.Commands) == 0 || in.Builder != builder {
		return nil, fail(connect.CodeInvalidArgument, "There is nothing to build, or an unknown builder")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	id := "im-" + sum(owner+"\n"+strings.Join(in.Image.Commands, "\n"))
	out := &modalapi.Image{ID: id}
	if s.built[id] {
		out.Result = &modalapi.Result{Status: modalapi.Success}
	}
	if !strings.Contains(in.Image.Commands[0], "missing") {
		s.images[id] = owner
	}
	return out, nil
}

// join tells what becomes of an image.
func (s *Server) join(_ context.Context, h http.Header, in *modalapi.ImageJoin, send func(*modalapi.ImageProgress) error) error {
	owner, err := s.owner(h, false)
	if err != nil {
		return err
	}
	if in.Last == "" { // the first time it is still being built
		return send(&modalapi.ImageProgress{Entry: "1-0"})
	}
	s.mu.Lock()
	result := &modalapi.Result{Status: modalapi.Failure, Exception: "the base image was not found"}
	if s.images[in.ID] == owner {
		s.built[in.ID], result = true, &modalapi.Result{Status: modalapi.Success}
	}
	s.mu.Unlock()
	return send(&modalapi.ImageProgress{Entry: "2-0", EOF: true, Result: result})
}

// imageRoutes sets the methods for names of images, and for snapshots.
func (s *Server) imageRoutes() {
	handle(s, "ImagePublish", func(_ context.Context, owner string, in *modalapi.ImageTag) (*modalapi.Empty, error) {
		if err := s.owns(owner, in.ID); err != nil {
			return nil, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.names[owner][in.Tag] = &modalapi.TagItem{Tag: in.Tag, Image: in.ID, Created: float64(time.Now().UnixNano()) / 1e9}
		return &modalapi.Empty{}, nil
	})
	handle(s, "ImageGetByTag", func(_ context.Context, owner string, in *modalapi.ImageName) (*modalapi.ImageRef, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		item := s.names[owner][in.Tag]
		if item == nil {
			return nil, fail(connect.CodeNotFound, "Image '"+in.Tag+"' not found")
		}
		return &modalapi.ImageRef{ID: item.Image}, nil
	})
	handle(s, "ImageListTags", func(_ context.Context, owner string, in *modalapi.TagsRequest) (*modalapi.Tags, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		out := &modalapi.Tags{}
		for tag, item := range s.names[owner] {
			if strings.HasPrefix(tag, in.Prefix) && tag > in.Page {
				out.Items = append(out.Items, item)
			}
		}
		slices.SortFunc(out.Items, func(a, b *modalapi.TagItem) int { return strings.Compare(a.Tag, b.Tag) })
		if len(out.Items) > 2 {
			out.Items, out.Next = out.Items[:2], out.Items[1].Tag
		}
		return out, nil
	})
	handle(s, "ImageNameDelete", func(_ context.Context, owner string, in *modalapi.ImageName) (*modalapi.Empty, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.names[owner][in.Tag] == nil {
			return nil, fail(connect.CodeNotFound, "Image '"+in.Tag+"' not found")
		}
		delete(s.names[owner], in.Tag)
		return &modalapi.Empty{}, nil
	})
	handle(s, "ImageDelete", func(_ context.Context, owner string, in *modalapi.ImageRef) (*modalapi.Empty, error) {
		saved, err := s.Snapshot(owner, in.ID)
		if err == nil {
			err = s.Forget(saved)
		}
		return &modalapi.Empty{}, err
	})
	routed(s, "TaskSnapshotFilesystem", func(in *modalapi.SnapshotRequest) (string, string) { return in.Task, "" },
		func(_ context.Context, b *servicetest.CloudSandbox, _ *execution, in *modalapi.SnapshotRequest) (*modalapi.Snapshot, error) {
			image := "im-" + sum(in.ID)
			s.mu.Lock()
			again := s.shots[in.ID] != ""
			s.shots[in.ID] = image
			s.mu.Unlock()
			if again {
				return &modalapi.Snapshot{Image: image}, nil
			}
			_, err := s.Save(b, servicetest.Snapshot{ID: image, Name: image})
			return &modalapi.Snapshot{Image: image}, err
		})
}

// Published returns the names of all images.
func (s *Server) Published() (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range s.names {
		for name := range of {
			all = append(all, name)
		}
	}
	return all
}
