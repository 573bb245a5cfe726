package atoll

import (
	"bytes"
	"context"
	"io"
	"strings"

	"github.com/atoll-run/atoll/sandbox"
)

// String returns the standard output of the command. If the command failed, the
// exit and the standard error follow.
func (r Result) String() string {
	if r.Exit.Reason == sandbox.ReasonExited && r.Exit.Code == 0 {
		return string(r.Stdout)
	}
	var b strings.Builder
	b.Write(r.Stdout)
	if b.Len() > 0 && !bytes.HasSuffix(r.Stdout, []byte("\n")) {
		b.WriteByte('\n')
	}
	b.WriteString(r.Exit.String())
	if text := bytes.TrimSpace(r.Stderr); len(text) > 0 {
		b.WriteString(": ")
		b.Write(text)
	}
	return b.String()
}

// ReadFile returns the content of a regular file. It reads the whole file into
// memory; see [Files.Read] for large files.
func (s *Sandbox) ReadFile(ctx context.Context, path string) ([]byte, error) {
	r, err := s.Files().Read(ctx, path, ReadOptions{})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// WriteFile creates or replaces a regular file atomically, and creates missing
// parent directories.
func (s *Sandbox) WriteFile(ctx context.Context, path string, data []byte, opts ...WriteOptions) error {
	_, err := s.Files().Write(ctx, path, bytes.NewReader(data), optional(opts))
	return err
}

// optional returns the first element of opts, or the zero value.
func optional[T any](opts []T) (o T) {
	if len(opts) > 0 {
		o = opts[0]
	}
	return o
}
