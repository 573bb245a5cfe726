package mcpserver

import (
	"context"
	"encoding/json"
	"fmt"
	"mime"
	"net/url"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
)

// uriRoot is the prefix of resource URIs.
const (
	uriRoot = "atoll://sandboxes"
	fileURI = uriRoot + "/{sandbox}/files/{+path}"
	logURI  = uriRoot + "/{sandbox}/processes/{process}/log"
)

// maxResource bounds the contents of a resource, in bytes.
const maxResource = 1 << 20

// resources adds the resources, which clients can read without a tool.
func (s *Server) resources() {
	s.mcp.AddResource(&mcp.Resource{
		URI: uriRoot, Name: "sandboxes", Title: "Sandboxes", Description: "The sandboxes that you may see.", MIMEType: "application/json",
	}, s.resource(uriRoot, does(ops.SandboxList), func(ctx context.Context, c *atoll.Client, _ []string) ([]byte, string, error) {
		out, err := list(ctx, &call{Client: c}, listArgs{Limit: maxList})
		if err != nil {
			return nil, "", err
		}
		text, err := json.Marshal(out)
		return text, "application/json", err
	}))
	s.mcp.AddResourceTemplate(&mcp.ResourceTemplate{
		URITemplate: fileURI, Name: "file", Title: "File of a sandbox", Description: "A file, at most 1 MiB; path without its leading slash.",
	}, s.resource(fileURI, does(ops.SandboxGet, ops.SandboxFind, ops.FilesRead), func(ctx context.Context, c *atoll.Client, parts []string) ([]byte, string, error) {
		if len(parts) != 3 || parts[1] != "files" {
			return nil, "", notFound
		}
		return fileResource(ctx, c, parts[0], "/"+parts[2])
	}))
	s.mcp.AddResourceTemplate(&mcp.ResourceTemplate{
		URITemplate: logURI, Name: "log", Title: "Log of a background command",
		Description: "Output of a background command, both streams; the middle of a long log is left out.", MIMEType: "text/plain",
	}, s.resource(logURI, does(ops.SandboxGet, ops.SandboxFind, ops.ProcessLogs), func(ctx context.Context, c *atoll.Client, parts []string) ([]byte, string, error) {
		if len(parts) != 3 || parts[1] != "processes" || !strings.HasSuffix(parts[2], "/log") {
			return nil, "", notFound
		}
		id := strings.TrimSuffix(parts[2], "/log")
		if err := process(id); err != nil {
			return nil, "", err
		}
		b, err := find(ctx, c, parts[0])
		if err != nil {
			return nil, "", err
		}
		out, err := logs(ctx, b, id, 0)
		if err != nil {
			return nil, "", err
		}
		return []byte(out.Output.Stdout + out.Output.Stderr), "text/plain", nil
	}))
}

var notFound = &sandbox.Error{Code: sandbox.CodeNotFound, Message: "there is no such resource"}

// resource returns a handler that calls a function with the parts of the URI
// after the root: the sandbox, the kind and the rest.
func (s *Server) resource(uri string, needs needs, get func(ctx context.Context, c *atoll.Client, parts []string) ([]byte, string, error)) mcp.ResourceHandler {
	s.routes = append(s.routes, ops.Route{Name: uri, Ops: needs.ops})
	return func(ctx context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		client, err := s.clientOf(req.Extra)
		if err != nil {
			return nil, told(err)
		}
		parts, err := uriParts(req.Params.URI)
		if err != nil {
			return nil, told(err)
		}
		data, kind, err := get(ctx, client, parts)
		switch sandbox.CodeOf(err) {
		case "":
		case sandbox.CodeNotFound, sandbox.CodeGone:
			return nil, mcp.ResourceNotFoundError(req.Params.URI)
		default:
			return nil, told(err)
		}
		contents := &mcp.ResourceContents{URI: req.Params.URI, MIMEType: kind}
		if utf8.Valid(data) {
			contents.Text = string(data)
		} else {
			contents.Blob = data
		}
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{contents}}, nil
	}
}

// uriParts splits and unescapes the URI of a resource.
func uriParts(uri string) ([]string, error) {
	rest, ok := strings.CutPrefix(uri, uriRoot)
	if !ok {
		return nil, notFound
	}
	if rest == "" {
		return nil, nil
	}
	if rest, ok = strings.CutPrefix(rest, "/"); !ok {
		return nil, notFound
	}
	parts := strings.SplitN(rest, "/", 3)
	for i := range parts {
		text, err := url.PathUnescape(parts[i])
		if err != nil {
			return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "uri", Message: "is not a valid address"}
		}
		parts[i] = text
	}
	return parts, nil
}

func fileResource(ctx context.Context, c *atoll.Client, ref, name string) ([]byte, string, error) {
	b, err := find(ctx, c, ref)
	if err != nil {
		return nil, "", err
	}
	data, total, err := piece(ctx, b, name, 0, maxResource+1)
	if err != nil {
		return nil, "", err
	}
	if len(data) > maxResource {
		return nil, "", &sandbox.Error{
			Code: sandbox.CodeExhausted, Subject: name, Message: fmt.Sprintf("has %d bytes, more than %d", total, maxResource),
			Hint: "read it in pieces with sandbox_read",
		}
	}
	kind := mime.TypeByExtension(path.Ext(name))
	if kind == "" {
		kind = "application/octet-stream"
		if utf8.Valid(data) {
			kind = "text/plain"
		}
	}
	return data, kind, nil
}
