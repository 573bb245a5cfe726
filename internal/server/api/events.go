package api

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// heartbeat is the interval of heartbeats on a stream without events.
const heartbeat = 15 * time.Second

// writeDeadline bounds one write to a slow client.
var writeDeadline = 30 * time.Second

func writeJSON(w http.ResponseWriter, status int, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(text) // the caller may be gone
	return nil
}

// lines writes JSON lines and flushes after each.
type lines struct {
	enc *json.Encoder
	rc  *http.ResponseController
}

func newLines(w http.ResponseWriter) *lines {
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	l := &lines{json.NewEncoder(w), http.NewResponseController(w)}
	_ = l.rc.Flush()
	return l
}

// write returns false when the client is gone.
func (l *lines) write(v any) bool {
	_ = l.rc.SetWriteDeadline(time.Now().Add(writeDeadline))
	return l.enc.Encode(v) == nil && l.rc.Flush() == nil
}

// events writes server-sent events.
type events struct {
	w    http.ResponseWriter
	rc   *http.ResponseController
	tick *time.Timer
}

func newEvents(w http.ResponseWriter) *events {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	e := &events{w: w, rc: http.NewResponseController(w), tick: time.NewTimer(heartbeat)}
	_ = e.rc.Flush()
	return e
}

// beat fires when a heartbeat is due.
func (e *events) beat() <-chan time.Time { return e.tick.C }

func (e *events) alive() bool {
	e.tick.Reset(heartbeat)
	return e.write(": alive\n\n")
}

// send returns false when the client is gone.
func (e *events) send(id, kind string, v any) bool {
	text, err := json.Marshal(v)
	if err != nil {
		return false
	}
	e.tick.Reset(heartbeat)
	if id != "" {
		id = "id: " + id + "\n"
	}
	return e.write(fmt.Sprintf("%sevent: %s\ndata: %s\n\n", id, kind, text))
}

func (e *events) write(text string) bool {
	_ = e.rc.SetWriteDeadline(time.Now().Add(writeDeadline))
	_, err := e.w.Write([]byte(text))
	return err == nil && e.rc.Flush() == nil
}

type eventsInput struct {
	After   int64     `query:"after" minimum:"0" doc:"only events with a higher seq"`
	Limit   int       `query:"limit" minimum:"0" maximum:"1000" doc:"maximum number of events"`
	Sandbox string    `query:"sandbox" maxLength:"63" doc:"only events of the sandbox with this id"`
	Type    []string  `query:"type,explode" maxItems:"32" doc:"only events of these types"`
	Op      []string  `query:"op,explode" maxItems:"32" doc:"only events of these operations"`
	Since   time.Time `query:"since" doc:"not before"`
	Until   time.Time `query:"until" doc:"before"`
}

type eventsOutput struct {
	Body struct {
		Events []sandbox.Event `json:"events" doc:"oldest first"`
	}
}

type reportOutput struct{ Body operator.AuditReport }

type auditPruneInput struct{ Body operator.AuditPrune }

type auditPrunedOutput struct{ Body operator.AuditPruned }

func (a *API) events() {
	huma.Register(a.huma, operation("listEvents", http.MethodGet, "/v1/events", "Events", "List events", ops.EventList),
		func(ctx context.Context, in *eventsInput) (*eventsOutput, error) {
			got, err := a.services.Events.Events(ctx, sandbox.EventQuery{
				After: in.After, Page: in.Limit, Sandbox: sandbox.ID(in.Sandbox), Types: in.Type, Ops: in.Op, Since: in.Since, Until: in.Until,
			})
			out := &eventsOutput{}
			out.Body.Events = append([]sandbox.Event{}, got...)
			return out, a.problem(ctx, err)
		})
	a.raw(operation("followEvents", http.MethodGet, "/v1/events/stream", "Events", "Follow events, as server-sent events", ops.EventFollow),
		map[string]string{
			"after": "only those with a higher number; the Last-Event-ID header does the same", "sandbox": "only about the sandbox with this id",
			"type": "only of these types; may be repeated", "op": "only about these operations; may be repeated",
			"since": "not before", "until": "before; when that time has come, an event \"end\" ends the stream",
		}, "", "text/event-stream", a.followEvents)
	a.raw(operation("exportAudit", http.MethodGet, "/v1/audit/export", "Events", "Export the log as JSON lines, each with the hash of its record", ops.EventList),
		map[string]string{
			"sandbox": "only about the sandbox with this id", "type": "only of these types; may be repeated",
			"op": "only about these operations; may be repeated", "since": "not before", "until": "before",
			"format": "otlp-json: as OpenTelemetry's collectors read it from a file, without what the chain can be checked with; json, or left out: as it is chained",
		}, "", "application/x-ndjson", a.exportEvents)
	huma.Register(a.huma, operation("verifyAudit", http.MethodGet, "/v1/audit/verify", "Events", "Verify the hash chain of the log", ops.AuditVerify),
		func(ctx context.Context, _ *none) (*reportOutput, error) {
			report, err := a.services.Events.VerifyAudit(ctx)
			return &reportOutput{report}, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("pruneAudit", http.MethodPost, "/v1/audit/prune", "Events", "Remove the oldest records of a log, which stays verifiable; only for the owner of the machine", ops.AuditPrune),
		func(ctx context.Context, in *auditPruneInput) (*auditPrunedOutput, error) {
			done, err := a.services.Events.PruneAudit(ctx, in.Body)
			return &auditPrunedOutput{done}, a.problem(ctx, err)
		})
}

// exportEvents writes the log with its hash chain. If that fails, it aborts the
// connection, so that the client does not take a part for the whole.
func (a *API) exportEvents(w http.ResponseWriter, r *http.Request) error {
	q := query{r: r}
	in := sandbox.EventQuery{
		Sandbox: sandbox.ID(q.get("sandbox")), Types: r.URL.Query()["type"], Ops: r.URL.Query()["op"], Since: q.time("since"), Until: q.time("until"),
	}
	if q.err != nil {
		return q.err
	}
	export := a.services.Events.ExportEvents
	switch q.get("format") {
	case "", "json":
	case "otlp-json":
		export = a.services.Events.ExportOTLP
	default:
		return invalid("format", "is not json or otlp-json")
	}
	out := &begun{w: w}
	w.Header().Set("Content-Type", "application/x-ndjson")
	err := export(r.Context(), in, out)
	return a.cutShort(r.Context(), out, err)
}

// followEvents streams the log. The id of a server-sent event is its seq, so
// that a client can continue after a lost connection.
func (a *API) followEvents(w http.ResponseWriter, r *http.Request) error {
	q := query{r: r}
	in := sandbox.EventQuery{
		After: q.int("after", 10, 64), Sandbox: sandbox.ID(q.get("sandbox")), Types: r.URL.Query()["type"], Ops: r.URL.Query()["op"],
		Since: q.time("since"), Until: q.time("until"),
	}
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		seq, err := strconv.ParseInt(last, 10, 64)
		if err != nil {
			return invalid("Last-Event-ID", "is not the id of an event")
		}
		in.After = seq
	}
	if q.err != nil {
		return q.err
	}
	if in.After < 0 {
		return invalid("after", "is negative")
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	log, err := a.services.Events.FollowEvents(ctx, in)
	if err != nil {
		return err
	}
	relay(a, ctx, cancel, newEvents(w), log, func(out *events, e sandbox.Event) bool {
		return out.send(strconv.FormatInt(e.Seq, 10), "event", e)
	})
	return nil
}

// relay sends what a sequence yields, until the sequence, ctx or the client ends.
// The sequence ends soon after cancel, which ends ctx.
func relay[T any](a *API, ctx context.Context, cancel func(), out *events, all iter.Seq2[T, error], send func(*events, T) bool) {
	type item struct {
		of  T
		err error
	}
	next := make(chan item)
	go func() {
		defer close(next)
		for v, err := range all {
			select {
			case next <- item{v, err}:
			case <-ctx.Done():
				return
			}
		}
	}()
	defer func() {
		cancel()
		for range next { // the iteration ends
		}
	}()
	for {
		select {
		case it, more := <-next:
			switch {
			case !more:
				if err := ctx.Err(); err != nil {
					out.send("", "error", a.problem(ctx, err))
				} else {
					out.send("", "end", struct{}{})
				}
				return
			case it.err != nil:
				out.send("", "error", a.problem(ctx, it.err))
				return
			case !send(out, it.of):
				return
			}
		case <-out.beat():
			if !out.alive() {
				return
			}
		}
	}
}
