package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/docker/go-units"
	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/bucket"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// doctor examines a running daemon. Each check returns findings, with a fix for
// every problem. No check changes anything.
type doctor struct {
	d       *Daemon
	began   time.Time // with the monotonic clock
	started time.Time // the same moment by the wall clock
}

func newDoctor(d *Daemon) *doctor {
	return &doctor{d: d, began: time.Now(), started: d.opts.wall()}
}

// wallClock is the machine's time without the monotonic clock.
func wallClock() time.Time { return time.Now().Round(0) }

// Diagnose runs all checks. Only the owner of the machine may call it.
func (doc *doctor) Diagnose(ctx context.Context) (operator.Diagnosis, error) {
	if err := doc.d.services.Machine.MayDiagnose(ctx); err != nil {
		return operator.Diagnosis{}, err
	}
	out := operator.Diagnosis{Version: doc.d.opts.Version, Node: doc.d.member.Node, Healthy: true}
	for _, check := range []func(context.Context) []driver.Finding{
		doc.store, doc.audit, doc.sending, doc.provider, doc.sandboxes, doc.gateway, doc.buckets, doc.disks, doc.descriptors, doc.clock,
	} {
		for _, f := range check(ctx) {
			out.Healthy = out.Healthy && f.Severity != driver.Blocker
			out.Findings = append(out.Findings, operator.Finding{Severity: string(f.Severity), Subject: f.Subject, Message: f.Message, Fix: f.Fix})
		}
	}
	return out, ctx.Err()
}

func ok(subject, format string, args ...any) driver.Finding {
	return driver.Finding{Severity: driver.OK, Subject: subject, Message: fmt.Sprintf(format, args...)}
}

func unwell(severity driver.Severity, subject, message, fix string) []driver.Finding {
	return []driver.Finding{{Severity: severity, Subject: subject, Message: message, Fix: fix}}
}

// cannot is the finding of a check that failed itself. It leaves out the error
// text, which may contain an address.
func cannot(subject string, err error, fix string) []driver.Finding {
	return unwell(driver.Blocker, subject, "the check failed: "+string(sandbox.CodeOf(err)), fix)
}

const seeLog = "see the daemon's log"

func (doc *doctor) store(ctx context.Context) []driver.Finding {
	if err := doc.d.store.Ping(ctx); err != nil {
		return cannot("store", err, "start the database, or restore the connection to it; the daemon recovers on its own")
	}
	have, know, err := doc.d.store.Level(ctx)
	switch {
	case err != nil:
		return cannot("store", err, seeLog)
	case have > know:
		return unwell(driver.Blocker, "store", fmt.Sprintf("a newer daemon brought the schema to %d, and this one knows %d", have, know), "run the newer release here, too")
	}
	return []driver.Finding{ok("store", "answers, with schema %d", have)}
}

// buckets checks whether buckets can be mounted.
func (doc *doctor) buckets(context.Context) []driver.Finding {
	err := bucket.Possible()
	named := len(doc.d.opts.Buckets)
	switch {
	case err == nil:
		return []driver.Finding{ok("buckets", "%d can be used as workspaces: FUSE is available", named)}
	case named == 0:
		return unwell(driver.Note, "buckets", "buckets cannot be used as workspaces: "+bucketProblem(err).Message, bucketProblem(err).Hint)
	}
	return unwell(driver.Warning, "buckets", fmt.Sprintf("%d are configured, but cannot be used as workspaces: %s", named, bucketProblem(err).Message), bucketProblem(err).Hint)
}

func bucketProblem(err error) *sandbox.Error {
	var e *sandbox.Error
	if errors.As(err, &e) {
		return e
	}
	return &sandbox.Error{Message: "FUSE cannot be used", Hint: seeLog}
}

// audit checks the ends of all logs. `atoll audit verify` reads a whole log.
func (doc *doctor) audit(ctx context.Context) (out []driver.Finding) {
	tenants, err := store.Read(ctx, doc.d.store, func(tx *store.Tx) ([]store.Tenant, error) { return tx.Operator().Tenants(ctx) })
	if err != nil {
		return cannot("audit", err, seeLog)
	}
	for _, t := range tenants {
		if err := doc.d.log.CheckHead(ctx, t.ID); err != nil {
			out = append(out, unwell(driver.Blocker, "audit", "the end of the log of "+t.ID+" differs from the kept copy", "keep a copy of the database, and see: atoll audit verify")...)
		}
	}
	if out != nil {
		return out
	}
	stats, err := doc.d.stats(ctx)
	if err != nil {
		return cannot("audit", err, seeLog)
	}
	return []driver.Finding{ok("audit", "the ends of %d logs match the kept copies; %d actions are in progress", len(tenants), stats.Unsettled)}
}

// muchUnsent is how many events may wait for a collector before there is a
// warning.
const muchUnsent = 10_000

func (doc *doctor) sending(ctx context.Context) []driver.Finding {
	if !doc.d.otel.Events() {
		return nil
	}
	waiting, err := doc.d.log.Unsent(ctx, doc.d.member.Node)
	if err != nil {
		return cannot("telemetry", err, seeLog)
	}
	n := int64(0)
	for _, w := range waiting {
		n += w.Head - w.After
	}
	if n > muchUnsent {
		return unwell(driver.Warning, "telemetry", fmt.Sprintf("%d events wait for the collector", n), "check that it responds, and see the daemon's log")
	}
	return []driver.Finding{ok("telemetry", "%d events wait for the collector", n)}
}

// provider checks whether sandboxes can be created, and which limits are not
// enforced.
func (doc *doctor) provider(ctx context.Context) (out []driver.Finding) {
	facts, err := doc.d.node.Probe(ctx, doc.d.opts.Provider)
	if err != nil {
		return cannot("provider", err, seeLog)
	}
	for _, f := range facts.Findings {
		if f.Severity == driver.Blocker || f.Severity == driver.Warning {
			out = append(out, f)
		}
	}
	var loose []string
	for name, l := range facts.Limits {
		if !l.Holds {
			loose = append(loose, name)
		}
	}
	slices.Sort(loose)
	if len(loose) > 0 {
		out = append(out, unwell(driver.Warning, "limits", "these are not enforced here: "+strings.Join(loose, ", "), "see: atoll doctor, of the provider")...)
	} else {
		out = append(out, ok("limits", "all hold"))
	}
	return append(out, ok("provider", "%s %s", facts.Provider, facts.Version))
}

// sandboxes finds sandboxes that only the store or only the provider knows, and
// sandboxes that run another engine than new ones.
func (doc *doctor) sandboxes(ctx context.Context) (out []driver.Finding) {
	c, err := doc.d.services.Sandboxes.Reconciler.Stats(ctx)
	if err != nil {
		return cannot("sandboxes", err, seeLog)
	}
	const soon = "the daemon corrects that within a minute; if it does not, " + seeLog
	if len(c.Unrecorded) > 0 {
		out = append(out, unwell(driver.Warning, "sandboxes", "these are running without a record: "+some(c.Unrecorded), soon)...)
	}
	if len(c.Missing) > 0 {
		out = append(out, unwell(driver.Warning, "sandboxes", "these are recorded as running and do not exist: "+some(c.Missing), soon)...)
	}
	if len(c.Unreachable) > 0 {
		out = append(out, unwell(driver.Warning, "sandboxes", "these belong to a provider, an account or an address that the daemon does not use: "+some(c.Unreachable),
			"start the daemon with the settings that they were created with")...)
	}
	facts, err := doc.d.node.Probe(ctx, doc.d.opts.Provider)
	if err != nil {
		return cannot("sandboxes", err, seeLog)
	}
	var old []sandbox.ID
	for _, f := range c.Running {
		if f.Engine != "" && facts.Engine != "" && f.Engine != facts.Engine && f.State == sandbox.Running {
			old = append(old, f.ID)
		}
	}
	if len(old) > 0 {
		out = append(out, unwell(driver.Note, "kernels", fmt.Sprintf("%d sandboxes run another engine, so their memory cannot be saved: %s", len(old), some(old)),
			"they keep running; to restart one with this engine and new processes: atoll stop NAME && atoll start NAME")...)
	}
	lost, err := doc.lostMemory(ctx, facts.Engine)
	if err != nil {
		return cannot("sandboxes", err, seeLog)
	}
	if len(lost) > 0 {
		out = append(out, unwell(driver.Note, "snapshots", fmt.Sprintf("%d hold memory of another engine and would start from their files only: %s", len(lost), some(lost)),
			"to restore the memory, run the version of Atoll that saved it; a sandbox that is paused to disk loses it when it is resumed here")...)
	}
	return append(out, ok("sandboxes", "%d are recorded and exist", len(c.Running)))
}

// lostMemory names the snapshots of this node whose memory the engine cannot
// restore: by the sandbox that is paused in the snapshot, otherwise by the
// snapshot's name.
func (doc *doctor) lostMemory(ctx context.Context, engine string) (names []string, err error) {
	for after := ""; ; {
		page, err := store.Read(ctx, doc.d.store, func(tx *store.Tx) ([]store.Snapshot, error) {
			return tx.Operator().Snapshots(ctx, doc.d.member.Node, after, store.MaxPage)
		})
		if err != nil || len(page) == 0 {
			return names, err
		}
		for _, s := range page {
			after = s.ID
			if s.Ready && s.Memory && s.Engine != engine && s.Provider == doc.d.opts.Provider {
				names = append(names, cmp.Or(s.Name, s.ParentName))
			}
		}
	}
}

// some lists a few ids.
func some[T ~string](ids []T) string {
	const most = 5
	slices.Sort(ids)
	var text []string
	for _, id := range ids[:min(len(ids), most)] {
		text = append(text, string(id))
	}
	if more := len(ids) - most; more > 0 {
		text = append(text, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(text, ", ")
}

// answerTime is how long a helper process may take to respond.
const answerTime = 3 * time.Second

func (doc *doctor) gateway(ctx context.Context) []driver.Finding {
	g, err := doc.d.node.Gateway()
	if err != nil {
		return cannot("gateway", err, seeLog)
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	switch runs, answers, links := g.State(ctx); {
	case runs && !answers:
		return unwell(driver.Blocker, "gateway", fmt.Sprintf("its process does not respond, and the networks of %d sandboxes depend on it", links), "the daemon replaces it within a minute; if that fails, "+seeLog)
	case links > 0 && !runs:
		return unwell(driver.Blocker, "gateway", fmt.Sprintf("its process is not running, and %d sandboxes have no network", links), "the daemon starts it again; if that fails, "+seeLog)
	case runs:
		return []driver.Finding{ok("gateway", "its process serves %d sandboxes", links)}
	}
	return []driver.Finding{ok("gateway", "no sandbox needs it")}
}

// Free disk space, in bytes, below which there is a warning, and below which
// nothing works, because recording an action needs space.
const (
	lowSpace = 2 << 30
	noSpace  = 256 << 20
)

func (doc *doctor) disks(context.Context) (out []driver.Finding) {
	seen := map[uint64]bool{}
	for _, name := range []string{"", "images", "snapshots", "workspaces", "blobs"} {
		var info unix.Stat_t
		var fs unix.Statfs_t
		path := filepath.Join(doc.d.node.Dir(), name)
		if unix.Stat(path, &info) != nil || seen[info.Dev] || unix.Statfs(path, &fs) != nil {
			continue // missing, or on a disk that was already checked
		}
		seen[info.Dev] = true
		free := int64(fs.Bavail) * fs.Bsize
		what := fmt.Sprintf("%s free where the %s is kept", units.BytesSize(float64(free)), cmp.Or(name, "state"))
		const fix = "remove what is not needed: atoll image prune, atoll snapshot prune, atoll template prune, atoll audit prune"
		switch {
		case readOnly(path):
			out = append(out, unwell(driver.Blocker, "disk", "the file system is read-only where the "+cmp.Or(name, "state")+" is kept", readOnlyFix)...)
		case free < noSpace:
			out = append(out, unwell(driver.Blocker, "disk", what, fix)...)
		case free < lowSpace:
			out = append(out, unwell(driver.Warning, "disk", what, fix)...)
		default:
			out = append(out, ok("disk", "%s", what))
		}
	}
	return out
}

func (doc *doctor) descriptors(context.Context) []driver.Finding {
	var limit unix.Rlimit
	open, err := os.ReadDir("/proc/self/fd")
	if err == nil {
		err = unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
	}
	if err != nil {
		return cannot("descriptors", err, seeLog)
	}
	if n := uint64(len(open)); n*5 > limit.Cur*4 {
		return unwell(driver.Warning, "descriptors", fmt.Sprintf("%d of %d are in use", n, limit.Cur), "raise the limit: LimitNOFILE in the unit, or ulimit -n")
	}
	return []driver.Finding{ok("descriptors", "%d of %d are in use", len(open), limit.Cur)}
}

// jump is how far the clock may be set after the start of the daemon without a
// warning.
const jump = 5 * time.Second

func (doc *doctor) clock(context.Context) []driver.Finding {
	off := doc.d.opts.wall().Sub(doc.started) - time.Since(doc.began)
	if off.Abs() > jump {
		return unwell(driver.Warning, "clock", "it was set by "+off.Round(time.Second).String()+" since the daemon started: lifetimes and the times of events are off by that",
			"make sure that the time is synchronized, and restart the daemon; sandboxes keep running")
	}
	return []driver.Finding{ok("clock", "steady")}
}
