package span

import (
	"context"
	"log/slog"
)

// Logs returns a handler that adds the ids of the request and its trace to each
// record.
func Logs(next slog.Handler) slog.Handler {
	if _, already := next.(logs); already {
		return next
	}
	return logs{next}
}

type logs struct{ slog.Handler }

func (l logs) Handle(ctx context.Context, r slog.Record) error {
	id, trace := IDs(ctx)
	if id != "" {
		r = r.Clone()
		r.AddAttrs(slog.String("request", id))
		if trace != "" {
			r.AddAttrs(slog.String("trace", trace))
		}
	}
	return l.Handler.Handle(ctx, r)
}

func (l logs) WithAttrs(attrs []slog.Attr) slog.Handler { return logs{l.Handler.WithAttrs(attrs)} }
func (l logs) WithGroup(name string) slog.Handler       { return logs{l.Handler.WithGroup(name)} }
