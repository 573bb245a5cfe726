package mcpserver

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
)

// Bounds of files, in bytes, and of listings.
const (
	defaultRead    = 64 << 10
	maxRead        = 256 << 10
	maxImage       = 2 << 20
	defaultEntries = 500
	maxEntries     = 5000
)

type readArgs struct {
	sandboxArgs
	Path   string `json:"path" jsonschema:"absolute"`
	Offset int64  `json:"offset,omitempty"`
	Limit  int64  `json:"limit,omitempty" jsonschema:"bytes; 65536 if left out, at most 262144"`
}

type readOut struct {
	Path       string `json:"path"`
	Content    string `json:"content,omitempty"`
	Encoding   string `json:"encoding,omitempty" jsonschema:"base64 if the content is not text; left out for text"`
	Bytes      int64  `json:"bytes" jsonschema:"length of the content in the file"`
	TotalBytes int64  `json:"total_bytes" jsonschema:"length of the file"`
	NextOffset *int64 `json:"next_offset,omitempty" jsonschema:"offset of the next part; left out at the end"`
	Image      string `json:"image,omitempty" jsonschema:"type of an image, which comes as image content"`
}

type writeArgs struct {
	sandboxArgs
	Path      string `json:"path" jsonschema:"absolute path; missing directories are made"`
	Content   string `json:"content"`
	Encoding  string `json:"encoding,omitempty" jsonschema:"base64 or text"`
	Mode      string `json:"mode,omitempty" jsonschema:"permissions in octal, such as 755"`
	NoReplace bool   `json:"no_replace,omitempty" jsonschema:"refuse to replace a file that exists"`
}

type writeOut struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes"`
}

type filesArgs struct {
	sandboxArgs
	Path  string `json:"path" jsonschema:"absolute"`
	Depth int    `json:"depth,omitempty" jsonschema:"levels to go down; 1 if left out"`
	Limit int    `json:"limit,omitempty" jsonschema:"entries; 500 if left out, at most 5000"`
}

type filesOut struct {
	Entries []fileOut `json:"entries"`
	More    bool      `json:"more,omitempty" jsonschema:"there are more entries than the limit"`
}

type fileOut struct {
	Path   string `json:"path" jsonschema:"relative to the listed directory"`
	Type   string `json:"type" jsonschema:"file, dir, symlink, fifo, socket or device"`
	Bytes  int64  `json:"bytes,omitempty"`
	Mode   string `json:"mode"`
	Target string `json:"target,omitempty" jsonschema:"of a symlink"`
}

func (s *Server) fileTools() {
	add(s, "sandbox_read", "Read a file", "Read a file as text, base64 or an image. Continue at next_offset.", looks, does(ops.SandboxGet, ops.SandboxFind, ops.FilesRead), read)
	add(s, "sandbox_write", "Write a file", "Create or replace a file.", changes, does(ops.SandboxGet, ops.SandboxFind, ops.FilesWrite), write)
	add(s, "sandbox_files", "List files", "List a directory.", looks, does(ops.SandboxGet, ops.SandboxFind, ops.FilesList), files)
}

func read(ctx context.Context, c *call, in readArgs) (readOut, error) {
	b, err := c.sandbox(ctx, in.Sandbox)
	if err != nil {
		return readOut{}, err
	}
	if in.Offset < 0 || in.Limit < 0 || in.Limit > maxRead {
		return readOut{}, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "limit", Message: fmt.Sprintf("offset and limit must not be negative, and limit at most %d", maxRead)}
	}
	if in.Limit == 0 {
		in.Limit = defaultRead
	}
	data, total, err := piece(ctx, b, in.Path, in.Offset, in.Limit)
	if err != nil {
		return readOut{}, err
	}
	out := readOut{Path: in.Path, Bytes: int64(len(data)), TotalBytes: total}
	if kind := http.DetectContentType(data); in.Offset == 0 && strings.HasPrefix(kind, "image/") && total <= maxImage {
		if data, _, err = piece(ctx, b, in.Path, 0, maxImage); err != nil {
			return readOut{}, err
		}
		c.content = []mcp.Content{&mcp.ImageContent{Data: data, MIMEType: kind}}
		out.Bytes, out.Image = int64(len(data)), kind
		return out, nil
	}
	end := in.Offset + out.Bytes
	if whole, ok := textOf(data, end < total); ok {
		out.Content, out.Bytes = string(whole), int64(len(whole))
		end = in.Offset + out.Bytes
	} else {
		out.Content, out.Encoding = base64.StdEncoding.EncodeToString(data), "base64"
	}
	if end < total {
		out.NextOffset = &end
	}
	return out, nil
}

// piece reads a part of a file and returns the length of the file.
func piece(ctx context.Context, b *atoll.Sandbox, path string, offset, limit int64) (data []byte, total int64, err error) {
	r, info, err := b.Files().Open(ctx, path, atoll.ReadOptions{Offset: offset, Length: limit})
	if err != nil {
		return nil, 0, err
	}
	defer r.Close()
	data, err = io.ReadAll(io.LimitReader(r, limit))
	return data, max(info.Size, offset+int64(len(data))), err
}

// textOf reports whether data is text. If more data follows, an incomplete
// character at the end is left out.
func textOf(data []byte, more bool) ([]byte, bool) {
	whole := data
	for i := 1; more && i < utf8.UTFMax && i <= len(data) && !utf8.Valid(whole); i++ {
		if utf8.RuneStart(data[len(data)-i]) {
			whole = data[:len(data)-i]
			break
		}
	}
	return whole, utf8.Valid(whole) && (len(whole) > 0 || len(data) == 0) && !strings.ContainsRune(string(whole), 0)
}

func write(ctx context.Context, c *call, in writeArgs) (writeOut, error) {
	b, err := c.sandbox(ctx, in.Sandbox)
	if err != nil {
		return writeOut{}, err
	}
	opts := atoll.WriteOptions{NoReplace: in.NoReplace}
	if in.Mode != "" {
		if _, err := fmt.Sscanf(in.Mode+"\n", "%o\n", &opts.Mode); err != nil || opts.Mode > 0o7777 {
			return writeOut{}, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "mode", Message: "is not octal permissions such as 755"}
		}
	}
	data := in.Content
	switch in.Encoding {
	case "", "text", "utf-8":
	case "base64":
		raw, err := base64.StdEncoding.DecodeString(in.Content)
		if err != nil {
			return writeOut{}, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "content", Message: "is not base64"}
		}
		data = string(raw)
	default:
		return writeOut{}, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "encoding", Message: "is neither text nor base64"}
	}
	info, err := b.Files().Write(ctx, in.Path, strings.NewReader(data), opts)
	return writeOut{Path: in.Path, Bytes: info.Size}, err
}

func files(ctx context.Context, c *call, in filesArgs) (filesOut, error) {
	b, err := c.sandbox(ctx, in.Sandbox)
	if err != nil {
		return filesOut{}, err
	}
	if in.Limit <= 0 {
		in.Limit = defaultEntries
	}
	in.Limit = min(in.Limit, maxEntries)
	out := filesOut{Entries: []fileOut{}}
	for f, err := range b.Files().List(ctx, in.Path, in.Depth) {
		if err != nil {
			return filesOut{}, err
		}
		if len(out.Entries) == in.Limit {
			out.More = true
			break
		}
		out.Entries = append(out.Entries, fileOut{
			Path: strings.ToValidUTF8(f.Path, "\uFFFD"), Type: string(f.Type), Bytes: f.Size, Mode: fmt.Sprintf("%04o", f.Mode), Target: strings.ToValidUTF8(f.Target, "\uFFFD"),
		})
	}
	return out, nil
}
