package mcpserver

import (
	"cmp"
	"context"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox/coding"
)

type codeArgs struct {
	sandboxArgs
	Code           string  `json:"code"`
	Language       string  `json:"language,omitempty" jsonschema:"python, javascript, typescript, bash, r, java"`
	TimeoutSeconds float64 `json:"timeout_seconds,omitempty"`
}

type codeOut struct {
	Results   string `json:"results,omitempty"`
	Stdout    string `json:"stdout,omitempty"`
	Stderr    string `json:"stderr,omitempty"`
	Truncated bool   `json:"truncated,omitempty"`
	Exception string `json:"exception,omitempty"`
	TimedOut  bool   `json:"timed_out,omitempty"`
}

// maxImages bounds the pictures in one result.
const maxImages = 8

func (s *Server) codeTools() {
	add(s, "code_run", "Run code", "Run code in a sandbox. Variables stay for the next call.", changes, does(ops.SandboxGet, ops.SandboxFind, ops.ProcessExec, ops.PortOpen), runCode)
}

// runCode executes code in the default context of its language. Pictures follow
// the result as images.
func runCode(ctx context.Context, c *call, in codeArgs) (out codeOut, err error) {
	limit, err := seconds(in.TimeoutSeconds, defaultTimeout, maxTimeout)
	if err != nil {
		return out, err
	}
	b, err := c.sandbox(ctx, in.Sandbox)
	if err != nil {
		return out, err
	}
	report := c.progress(ctx, limit)
	defer report.end()
	var stdout, stderr, results excerpt
	stdout.seen, stderr.seen = report.saw, report.saw
	req := coding.CodeRequest{Code: in.Code, Language: in.Language, TimeoutMS: limit.Milliseconds()}
	err = b.StreamCode(ctx, req, func(e coding.CodeEvent) error {
		switch e.Type {
		case coding.CodeStdout:
			_, _ = stdout.Write([]byte(e.Text))
		case coding.CodeStderr:
			_, _ = stderr.Write([]byte(e.Text))
		case coding.CodeShown:
			_, _ = results.Write([]byte(e.Result.Text + "\n"))
			c.picture(e.Result.PNG, "image/png")
			c.picture(e.Result.JPEG, "image/jpeg")
		case coding.CodeFailed:
			out.Exception = cmp.Or(e.Error.Traceback, e.Error.Name+": "+e.Error.Value)
		case coding.CodeEnded:
			out.TimedOut = e.TimedOut
		}
		return nil
	})
	var n [3]int64
	out.Stdout, n[0] = stdout.text()
	out.Stderr, n[1] = stderr.text()
	out.Results, n[2] = results.text()
	out.Truncated = max(n[0], n[1], n[2]) > maxOutput
	return out, err
}

// picture adds an image to the result, if there is room for it.
func (c *call) picture(data []byte, kind string) {
	if len(data) > 0 && len(data) <= maxImage && len(c.content) < maxImages {
		c.content = append(c.content, &mcp.ImageContent{Data: data, MIMEType: kind})
	}
}
