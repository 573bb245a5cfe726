package daemon

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/server/e2bapi"
	"github.com/atoll-run/atoll/sandbox"
)

func (s e2bService) SetNetwork(ctx context.Context, id sandbox.ID, n sandbox.Network) error {
	_, err := s.plane.SetNetwork(ctx, string(id), n)
	return err
}

func (s e2bService) CreateSecret(ctx context.Context, name string, value []byte, hosts []string, labels map[string]string) (e2bapi.Secret, error) {
	made, err := s.plane.Secrets.Create(ctx, sandbox.NewSecret{Name: name, Value: value, Hosts: hosts, Labels: labels})
	return e2bSecret(made), err
}

func (s e2bService) UpdateSecret(ctx context.Context, name string, value []byte, labels map[string]string) (e2bapi.Secret, error) {
	changed, err := s.plane.Secrets.Rotate(ctx, name, sandbox.SecretValue{Value: value, Labels: labels})
	return e2bSecret(changed), err
}

func (s e2bService) Secrets(ctx context.Context) ([]e2bapi.Secret, error) {
	all, err := s.plane.Secrets.List(ctx)
	out := make([]e2bapi.Secret, len(all))
	for i, one := range all {
		out[i] = e2bSecret(one)
	}
	return out, err
}

func (s e2bService) RemoveSecret(ctx context.Context, name string) error {
	return s.plane.Secrets.Remove(ctx, name, true)
}

func e2bSecret(s sandbox.StoredSecret) e2bapi.Secret {
	return e2bapi.Secret{Name: s.Name, Version: s.Version, Labels: s.Labels, Created: s.Created, Updated: s.Updated}
}

// Logs reads them from the log of events, which has more than one page of them
// only for a sandbox that did much.
func (s e2bService) Logs(ctx context.Context, id sandbox.ID, q e2bapi.LogQuery) ([]e2bapi.LogEntry, error) {
	const page = 1000
	var out []e2bapi.LogEntry
	want := sandbox.EventQuery{Sandbox: id, Since: q.Since, Until: q.Until, Page: page}
	for q.Newest || len(out) < q.Limit {
		events, err := s.plane.Events.Events(ctx, want)
		if err != nil {
			return nil, err
		}
		for i := range events {
			want.After = events[i].Seq
			if e := logEntry(&events[i]); q.Match == nil || q.Match(&e) {
				out = append(out, e)
			}
		}
		if q.Newest && len(out) > q.Limit { // only the last ones count
			out = slices.Delete(out, 0, len(out)-q.Limit)
		}
		if len(events) < page {
			break
		}
	}
	if q.Newest {
		slices.Reverse(out)
	}
	return out[:min(len(out), q.Limit)], nil
}

// logEntry is an event as a line for a person.
func logEntry(e *sandbox.Event) e2bapi.LogEntry {
	out := e2bapi.LogEntry{Time: e.Time, Level: "info", Message: e.Type, Fields: map[string]string{"op": e.Op, "seq": strconv.FormatInt(e.Seq, 10)}}
	switch e.Type {
	case eventlog.Attempted:
		out.Level, out.Message = "debug", "about to do "+e.Op
	case eventlog.Denied:
		out.Level, out.Message = "warn", "denied: "+e.Op
	case eventlog.Failed, eventlog.Unknown, eventlog.Lost:
		out.Level, out.Message = "error", e.Type+": "+e.Op
	case eventlog.EgressDenied, eventlog.EgressFailed, eventlog.EgressLimited:
		out.Level = "warn"
	}
	if what := cmp.Or(e.Program, e.Subject); what != "" {
		out.Message += " " + what
	}
	if e.Exit != nil {
		out.Fields["exitCode"] = strconv.Itoa(*e.Exit)
		out.Message += fmt.Sprintf(" (exit status %d)", *e.Exit)
	}
	if e.Code != "" {
		out.Fields["code"] = string(e.Code)
	}
	return out
}
