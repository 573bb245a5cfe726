package span_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/internal/span"
	"github.com/atoll-run/atoll/sandbox"
)

func TestParseParent(t *testing.T) {
	const trace, id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	good := map[string]bool{ // sampled
		"00-" + trace + "-" + id + "-01":       true,
		"00-" + trace + "-" + id + "-00":       false,
		"00-" + trace + "-" + id + "-ff":       true,
		"cc-" + trace + "-" + id + "-01-later": true,
	}
	for header, sampled := range good {
		if p, ok := span.ParseParent(header); !ok || p != (span.Parent{Trace: trace, Span: id, Sampled: sampled}) {
			t.Errorf("%s: %+v %v", header, p, ok)
		}
	}
	for _, header := range []string{
		"", "00", "00-" + trace + "-" + id, "ff-" + trace + "-" + id + "-01", "00-" + trace + "-" + id + "-01-more",
		"00-" + strings.Repeat("0", 32) + "-" + id + "-01", "00-" + trace + "-0000000000000000-01", "00-" + strings.ToUpper(trace) + "-" + id + "-01",
		"00-" + trace + "x-" + id + "-01", "00-" + trace + "-" + id + "-0\n", " 00-" + trace + "-" + id + "-01", "0-" + trace + "-" + id + "-01",
	} {
		if p, ok := span.ParseParent(header); ok {
			t.Errorf("%q: %+v", header, p)
		}
	}
}

func FuzzParseParent(f *testing.F) {
	f.Add("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	f.Fuzz(func(t *testing.T, header string) {
		p, ok := span.ParseParent(header)
		if ok && (len(p.Trace) != 32 || len(p.Span) != 16 || strings.Trim(p.Trace+p.Span, "0123456789abcdef") != "") {
			t.Errorf("%q: %+v", header, p)
		}
	})
}

// tracer records spans.
type tracer struct{ began, ended []string }

func (tr *tracer) Start(ctx context.Context, layer, op string, sb sandbox.ID) (context.Context, func(error)) {
	name := layer + "." + op
	tr.began = append(tr.began, name+"@"+string(sb))
	return ctx, func(err error) { tr.ended = append(tr.ended, name+":"+string(sandbox.CodeOf(err))) }
}

func TestStart(t *testing.T) {
	ctx, end := span.Start(t.Context(), "nobody", "listens", "")
	end(nil)
	if ctx != t.Context() {
		t.Error("a context was made for nobody")
	}
	tr := &tracer{}
	ctx = span.WithTracer(ctx, tr)
	broken := errors.New("broken")
	if err := span.In(ctx, "out", "er", "sb-1", func(ctx context.Context) error {
		_, end := span.Start(ctx, "in", "ner", "")
		end(nil)
		return broken
	}); !errors.Is(err, broken) {
		t.Error(err)
	}
	if got := strings.Join(append(tr.began, tr.ended...), " "); got != "out.er@sb-1 in.ner@ in.ner: out.er:internal" {
		t.Error(got)
	}
}

func TestAtEnd(t *testing.T) {
	var told []string
	tell := func(word string) func() { return func() { told = append(told, word) } }
	ctx, cancel := context.WithCancel(t.Context())
	request := span.WithRequest(ctx, "r1", "")
	span.AtEnd(context.WithValue(request, t, 1), tell("a"))
	span.AtEnd(request, tell("b"))
	shorter, end := context.WithCancel(request) // ends by itself
	heard := make(chan struct{})
	span.AtEnd(shorter, func() { close(heard) })
	if len(told) != 0 {
		t.Error(told)
	}
	end()
	<-heard
	cancel()
	span.Over(request)
	span.Over(request)
	if got := strings.Join(told, ""); got != "ab" {
		t.Error(got)
	}
	late := make(chan struct{}) // later ones are not lost
	span.AtEnd(request, func() { close(late) })
	<-late
	span.Over(t.Context()) // of no request
}

func TestLogs(t *testing.T) {
	var out bytes.Buffer
	logger := slog.New(span.Logs(span.Logs(slog.NewTextHandler(&out, nil)))).With("k", "v")
	logger.Info("without")
	if strings.Contains(out.String(), "request") {
		t.Error(out.String())
	}
	out.Reset()
	ctx := span.WithRequest(t.Context(), "r1", "")
	logger.InfoContext(ctx, "no trace")
	if got := out.String(); strings.Count(got, "request=r1") != 1 || strings.Contains(got, "trace=") {
		t.Error(got)
	}
	out.Reset()
	span.SetTrace(ctx, "t1")
	logger.InfoContext(ctx, "both")
	if got := out.String(); !strings.Contains(got, "k=v request=r1 trace=t1") {
		t.Error(got)
	}
	span.SetTrace(t.Context(), "of nobody")
	if id, trace := span.IDs(t.Context()); id+trace != "" {
		t.Error(id, trace)
	}
}

// BenchmarkStart measures a span without a collector.
func BenchmarkStart(b *testing.B) {
	ctx := span.WithRequest(b.Context(), "r1", "")
	b.ReportAllocs()
	for b.Loop() {
		_, end := span.Start(ctx, "plane", "op", "sb-1")
		end(nil)
	}
}
