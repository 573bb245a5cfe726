package templates

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/control/plan"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/template"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// A template with a start command has a memory snapshot. At the end of the
// build, the command is started in a sandbox; when the ready command succeeds,
// a snapshot with memory is taken. Sandboxes of the template are restored from
// it. It is a snapshot of the tenant like others, and only a cache: if it is
// missing or cannot be restored, a sandbox is created from the image and the
// command is started there.

const (
	// finalizeTimeout limits the clean-up when the caller has gone.
	finalizeTimeout = 10 * time.Second
	// readyTime is how long a start command may take until it is ready, and
	// readyPoll is how often the ready command is run.
	readyTime = 5 * time.Minute
	readyPoll = 200 * time.Millisecond
)

// labelTag is the label with the tag of the template on its snapshot.
const labelTag = "tag"

// remember sets the snapshot of a new template: that of a template with the
// same image and commands if there is one, otherwise a new one.
func (svc *Service) remember(ctx context.Context, t *store.Template, req template.NamedRequest) error {
	if t.Start == "" || !svc.hasMemory(ctx) {
		return nil
	}
	all, err := store.Read(ctx, svc.Store, func(tx *store.Tx) ([]store.Template, error) { return tx.Templates().List(ctx, t.Tenant) })
	if err != nil {
		return err
	}
	log := &startLog{t: t, to: req.Log}
	for _, o := range all {
		same := o.Image == t.Image && o.Start == t.Start && o.Ready == t.Ready && o.CPUs == t.CPUs && o.Memory == t.Memory
		if same && !req.NoCache && svc.saved(ctx, &o) != nil {
			t.Snapshot = o.Snapshot
			log.tell("START "+t.Start, false, true)
			return nil
		}
	}
	log.tell("START "+t.Start, false, false)
	t.Snapshot, err = svc.startOnce(ctx, t, log)
	return err
}

// saved returns the snapshot of a template, if it can be used here.
func (svc *Service) saved(ctx context.Context, t *store.Template) *plan.Snapshot {
	if t.Snapshot == "" {
		return nil
	}
	s, err := svc.cfg.Snapshots.Source(ctx, t.Tenant, t.Snapshot)
	if err != nil {
		return nil
	}
	return s
}

// hasMemory reports whether snapshots of the default provider contain memory.
func (svc *Service) hasMemory(ctx context.Context) bool {
	be, err := svc.cfg.Providers.Backend(ctx, "")
	return err == nil && be.HasMemory(ctx)
}

// startOnce starts a template in a temporary sandbox, waits until it is ready,
// takes a snapshot and returns its id.
func (svc *Service) startOnce(ctx context.Context, t *store.Template, log io.Writer) (id string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, readyTime, &sandbox.Error{
		Code: sandbox.CodeTimeout, Subject: "ready", Message: fmt.Sprintf("the start command was not ready within %v", readyTime),
		Hint: "try both commands in a sandbox of the image, " + t.Image,
	})
	defer cancel()
	opened, err := builders{svc, t.Tenant, []string{t.Image}}.with(ctx, sandbox.Spec{
		Image: t.Image, Resources: sandbox.Resources{CPUs: t.CPUs, Memory: t.Memory},
	})
	if err != nil {
		return "", err
	}
	defer func() {
		if failed := opened.Close(ctx); err == nil {
			err = failed
		}
	}()
	if err := awaitReady(ctx, opened, t.Start, t.Ready, log); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return "", cause
		}
		return "", err
	}
	name := "template-" + strings.ToLower(rand.Text()[:12])
	s, err := svc.cfg.Snapshots.CreateSnapshot(ctx, string(opened.sandbox.ID()), durable.SnapshotRequest{
		Name: name, Memory: true, Labels: map[string]string{durable.LabelTemplate: t.Name, labelTag: t.Tag},
	})
	return s.ID, err
}

// awaitReady runs the start command and waits until it is ready or has failed.
func awaitReady(ctx context.Context, b buildSandbox, start, ready string, log io.Writer) error {
	proc, err := b.sandbox.Exec(ctx, sandbox.Command{Shell: start, Background: true})
	if err != nil {
		return err
	}
	var work sync.WaitGroup
	defer work.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer proc.Close()
	ended := make(chan sandbox.Exit, 1)
	work.Go(func() {
		if exit, err := proc.Wait(ctx); err == nil {
			ended <- exit
		}
	})
	for _, r := range []io.Reader{proc.Stdout(), proc.Stderr()} {
		work.Go(func() { _, _ = io.Copy(log, r) })
	}
	for ready != "" {
		exit, err := b.Exec(ctx, sandbox.Command{Shell: ready}, io.Discard)
		if err != nil {
			return err
		}
		if exit.Code == 0 {
			return nil
		}
		select {
		case exit := <-ended:
			if exit.Code != 0 {
				return &sandbox.Error{
					Code: sandbox.CodeInvalid, Op: "template.build", Subject: "start",
					Message: fmt.Sprintf("the start command ended with code %d before it was ready", exit.Code),
					Hint:    "its output is in the build log",
				}
			}
		case <-time.After(readyPoll):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// startLog is the log of a build while its start command runs.
type startLog struct {
	t  *store.Template
	mu sync.Mutex
	to func(durable.BuildEvent) // nil: no progress is reported
}

func (l *startLog) tell(text string, output, cached bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.to != nil {
		l.to(durable.BuildEvent{Time: time.Now(), Step: l.t.Steps, Steps: l.t.Steps, Text: text, Output: output, Cached: cached})
	}
}

func (l *startLog) Write(b []byte) (int, error) {
	l.tell(string(b), true, false)
	return len(b), nil
}

// StartCold runs the start command of a template in a sandbox that was not
// restored from its snapshot, and waits until it is ready. If it does not
// become ready, the sandbox is removed.
func (svc *Service) StartCold(ctx context.Context, id sandbox.ID, t *plan.Template) error {
	within, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	sb, err := svc.cfg.Exec.Open(within, string(id))
	if err == nil {
		err = awaitReady(within, buildSandbox{svc, sb}, t.Start, t.Ready, io.Discard)
	}
	if err != nil {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), finalizeTimeout)
		defer cancel()
		svc.Report(ctx, svc.cfg.Sandboxes.Destroy(late, string(id)))
	}
	return err
}

// setTemplate records a template under its name.
func (svc *Service) setTemplate(ctx context.Context, t *store.Template) error {
	return svc.replaceTemplate(ctx, t.Tenant, t.Name, t.Tag, func(tx *store.Tx) (err error) {
		*t, err = tx.Templates().Set(ctx, *t)
		return err
	})
}

// replaceTemplate changes what a template name refers to, and removes the old
// snapshot if no other name refers to it.
func (svc *Service) replaceTemplate(ctx context.Context, tenant, name, tag string, change func(*store.Tx) error) error {
	var unused string
	err := svc.Store.Update(ctx, func(tx *store.Tx) error {
		unused = ""
		if old, err := tx.Templates().Get(ctx, tenant, name, tag); err == nil {
			unused = old.Snapshot
		}
		if err := change(tx); err != nil {
			return err
		}
		used, err := tx.Templates().Snapshots(ctx, tenant)
		if used[unused] {
			unused = ""
		}
		return err
	})
	if err != nil {
		return err
	}
	svc.cfg.Snapshots.TemplatesChanged(tenant)
	if unused == "" {
		return nil
	}
	if s, err := svc.cfg.Snapshots.Find(ctx, tenant, unused); err == nil {
		svc.Report(ctx, svc.cfg.Snapshots.Remove(ctx, &s))
	}
	return nil
}
