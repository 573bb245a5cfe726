// Package modal is a fake of the service Modal: its control plane and its
// workers, in one server that speaks gRPC without TLS. Its sandboxes are
// sandboxes of an Atoll provider. The official SDK for Python works with it, and
// so does Atoll's driver.
package modal

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/modalapi"
	"github.com/atoll-run/atoll/internal/testing/servicetest"
)

// The token that the service takes, and the name of an app that exists.
const (
	TokenID     = "ak-0123456789abcdef"
	TokenSecret = "as-0123456789abcdef"
	App         = "agents"
)

// Server is the service. Make one with New.
type Server struct {
	*servicetest.GRPC
	// URL is the address of the server, which requests need to find the workers.
	URL string

	mu     sync.Mutex
	keys   map[string]string // accounts by token
	tokens map[string]string // accounts and sandboxes by short-lived token
	apps   map[string]string // IDs by account and name
	images map[string]string // accounts by ID
	built  map[string]bool
	names  map[string]map[string]*modalapi.TagItem // of images, by account
	shots  map[string]string                       // images by ID of the request
	execs  map[string]*execution
}

// The words of this fake for the statuses of a sandbox, and their numbers. The
// service has only results.
const (
	running = "running"
	ended   = "terminated"
)

var results = map[string]int32{
	"": 0, "starting": 0, running: 0, ended: modalapi.Terminated, "failed": 5, "success": modalapi.Success, "timeout": modalapi.Timeout, "hibernating": 99,
}

// New returns a service. Its sandboxes are sandboxes of a provider.
func New(backing driver.Provider) *Server {
	s := &Server{
		GRPC: &servicetest.GRPC{
			Cloud: servicetest.NewCloud(backing, servicetest.Statuses{Starting: "starting", Running: running, Failed: "failed", Deleted: ended}), Views: views,
			Patience: func(seconds int) (string, any) {
				return modalapi.RetryPolicyName, &modalapi.RetryPolicy{RetryAfter: float32(seconds)}
			},
		},
		keys:   map[string]string{},
		tokens: map[string]string{}, apps: map[string]string{}, images: map[string]string{}, built: map[string]bool{},
		names: map[string]map[string]*modalapi.TagItem{}, shots: map[string]string{}, execs: map[string]*execution{},
	}
	s.AddKey(TokenID, TokenSecret, "ws-1")
	handle(s, "ClientHello", func(context.Context, string, *modalapi.Empty) (*modalapi.Empty, error) { return &modalapi.Empty{}, nil })
	handle(s, "AuthTokenGet", func(_ context.Context, owner string, _ *modalapi.Empty) (*modalapi.AuthToken, error) {
		return &modalapi.AuthToken{Token: s.issue(owner)}, nil
	})
	handle(s, "EnvironmentGetOrCreate", func(context.Context, string, *modalapi.EnvironmentRequest) (*modalapi.Environment, error) {
		e := &modalapi.Environment{ID: "en-main", Metadata: &modalapi.EnvironmentMetadata{Name: "main", Settings: &modalapi.EnvironmentSettings{Builder: builder}}}
		return e, nil
	})
	handle(s, "AppGetOrCreate", s.app)
	handle(s, "ImageGetOrCreate", s.image)
	handle(s, "ImageFromId", func(_ context.Context, owner string, in *modalapi.ImageRef) (*modalapi.Image, error) {
		return &modalapi.Image{ID: in.ID}, s.owns(owner, in.ID)
	})
	servicetest.HandleStream(s.GRPC, modalapi.Client+"ImageJoinStreaming", s.join)
	s.imageRoutes()
	s.sandboxRoutes()
	s.workerRoutes()
	return s
}

// builder is the version of the image builder.
const builder = "2025.06"

// AddKey adds a token of an account, with the app App.
func (s *Server) AddKey(id, secret, account string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys[id+"\n"+secret] = account
	s.apps[account+"\n"+App] = "ap-" + servicetest.NewID()
	s.names[account] = map[string]*modalapi.TagItem{}
}

func (s *Server) app(_ context.Context, owner string, in *modalapi.AppRequest) (*modalapi.App, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := owner + "\n" + in.Name
	switch {
	case in.Name == "":
		return nil, fail(connect.CodeInvalidArgument, "The app has no name")
	case s.apps[key] == "" && in.Creation != modalapi.CreateIfMissing:
		return nil, fail(connect.CodeNotFound, "App '"+in.Name+"' not found")
	case s.apps[key] == "":
		s.apps[key] = "ap-" + servicetest.NewID()
	}
	return &modalapi.App{ID: s.apps[key]}, nil
}

// hasApp checks that an app exists.
func (s *Server) hasApp(owner, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, known := range s.apps {
		if known == id && strings.HasPrefix(key, owner+"\n") {
			return nil
		}
	}
	return fail(connect.CodeNotFound, "App "+id+" not found")
}

// sandboxRoutes sets the methods for sandboxes.
func (s *Server) sandboxRoutes() {
	handle(s, "SandboxCreateV2", s.create)
	handle(s, "SandboxListV2", s.list)
	handle(s, "SandboxGetFromNameV2", func(_ context.Context, owner string, in *modalapi.NameRequest) (*modalapi.Named, error) {
		b, err := s.Find(owner, in.Name)
		if err != nil || s.Show(b).Status == ended {
			return nil, servicetest.ErrMissing
		}
		return &modalapi.Named{ID: s.Show(b).ID}, nil
	})
	handle(s, "SandboxWaitV2", func(ctx context.Context, owner string, in *modalapi.WaitRequest) (*modalapi.Waited, error) {
		b, err := s.Find(owner, in.ID)
		if err != nil {
			return nil, err
		}
		deadline := time.Now().Add(time.Duration(in.Timeout * float32(time.Second)))
		for s.result(b).Status == 0 && time.Now().Before(deadline) && ctx.Err() == nil {
			time.Sleep(20 * time.Millisecond)
		}
		return &modalapi.Waited{Result: s.result(b)}, nil
	})
	handle(s, "SandboxTagsGetV2", func(_ context.Context, owner string, in *modalapi.SandboxRef) (*modalapi.TagsGet, error) {
		b, err := s.Find(owner, in.ID)
		if err != nil {
			return nil, err
		}
		return &modalapi.TagsGet{Tags: tagsOf(s.Show(b).Labels)}, nil
	})
	handle(s, "SandboxTagsSetV2", func(_ context.Context, owner string, in *modalapi.TagsSet) (*modalapi.Empty, error) {
		b, err := s.Find(owner, in.ID)
		if err == nil {
			s.Change(b, func(b *servicetest.Sandbox) { b.Labels = labelsOf(in.Tags) })
		}
		return &modalapi.Empty{}, err
	})
	handle(s, "SandboxTerminateV2", func(_ context.Context, owner string, in *modalapi.SandboxRef) (*modalapi.Empty, error) {
		b, err := s.Find(owner, in.ID)
		if err == nil {
			err = s.Delete(b)
		}
		return &modalapi.Empty{}, err
	})
	handle(s, "SandboxGetTaskIdV2", func(_ context.Context, owner string, in *modalapi.SandboxRef) (*modalapi.TaskID, error) {
		b, err := s.Find(owner, in.ID)
		if err != nil {
			return nil, err
		}
		task := taskOf(in.ID)
		out := &modalapi.TaskID{ID: &task}
		if r := s.result(b); r.Status != 0 {
			out = &modalapi.TaskID{Result: r}
		}
		return out, nil
	})
	handle(s, "SandboxGetCommandRouterAccess", func(_ context.Context, owner string, in *modalapi.SandboxRef) (*modalapi.Access, error) {
		b, err := s.Find(owner, in.ID)
		if err == nil {
			_, _, err = s.Machine(b)
		}
		if err != nil {
			return nil, err
		}
		return &modalapi.Access{JWT: s.issue(in.ID), URL: s.URL}, nil
	})
}

// taskOf returns the ID of the task of a sandbox.
func taskOf(id string) string { return "ta-" + strings.TrimPrefix(id, "sb-") + "V" }

// result is how a sandbox ended.
func (s *Server) result(b *servicetest.CloudSandbox) *modalapi.Result {
	return &modalapi.Result{Status: results[s.Show(b).Status]}
}

func labelsOf(tags []*modalapi.Tag) map[string]string {
	labels := map[string]string{}
	for _, t := range tags {
		labels[t.Name] = t.Value
	}
	return labels
}

func tagsOf(labels map[string]string) (tags []*modalapi.Tag) {
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		tags = append(tags, &modalapi.Tag{Name: k, Value: labels[k]})
	}
	return tags
}

// maxTimeout is how long a sandbox may live, in seconds.
const maxTimeout = 86_400

func (s *Server) create(_ context.Context, owner string, in *modalapi.CreateRequest) (*modalapi.Created, error) {
	d := in.Sandbox
	if d == nil || d.Timeout == 0 || d.Timeout > maxTimeout {
		return nil, fail(connect.CodeInvalidArgument, "The timeout must be at most "+strconv.Itoa(maxTimeout)+" seconds")
	}
	if d.Name != nil && len(*d.Name) > 64 {
		return nil, fail(connect.CodeInvalidArgument, "The name must be shorter than 64 characters")
	}
	if err := s.hasApp(owner, in.App); err != nil {
		return nil, err
	}
	if err := s.owns(owner, d.Image); err != nil {
		return nil, err
	}
	n := d.Network
	switch {
	case n == nil || n.Type == 0 || n.Type > modalapi.Allowlist:
		return nil, fail(connect.CodeInvalidArgument, "The network access is not known")
	case n.Type != modalapi.Allowlist && len(n.CIDRs)+len(n.Domains) > 0:
		return nil, fail(connect.CodeInvalidArgument, "Only an allow list has entries")
	}
	from, _ := s.Snapshot(owner, d.Image)
	id := "sb-" + servicetest.NewID()
	sandbox := servicetest.Sandbox{ID: id, Name: id, Owner: owner, Labels: labelsOf(in.Tags), Request: in, Ends: time.Now().Add(time.Duration(d.Timeout) * time.Second)}
	if d.Name != nil {
		sandbox.Name = *d.Name
	}
	if _, err := s.Create(sandbox, from); err != nil {
		return nil, err
	}
	return &modalapi.Created{ID: id, Task: taskOf(id)}, nil
}

// list lists sandboxes that run, the newest first, a few per page.
func (s *Server) list(_ context.Context, owner string, in *modalapi.ListRequest) (*modalapi.List, error) {
	if in.App != "" {
		if err := s.hasApp(owner, in.App); err != nil {
			return nil, err
		}
	}
	found := s.Cloud.List(owner, labelsOf(in.Tags))
	slices.Reverse(found)
	out := &modalapi.List{}
	for _, b := range found {
		at := float64(b.Created.UnixNano()) / 1e9
		made, _ := b.Request.(*modalapi.CreateRequest)
		if in.Before > 0 && at >= in.Before || in.App != "" && made.App != in.App {
			continue
		}
		out.Sandboxes = append(out.Sandboxes, &modalapi.Info{
			ID: b.ID, Created: at, Tags: tagsOf(b.Labels), Name: b.Name, Timeout: made.Sandbox.Timeout,
			Task: &modalapi.Task{ID: taskOf(b.ID), Result: &modalapi.Result{Status: results[b.Status]}},
		})
		if len(out.Sandboxes) == 3 {
			break
		}
	}
	return out, nil
}
