package mcpserver

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/bounds"
)

// nature describes the effects of a tool, for its annotations.
type nature int

// The natures of tools.
const (
	looks      nature = iota // changes nothing
	adds                     // creates something new each time
	idempotent               // sets a state; repeating it has no further effect
	changes                  // may change or remove existing things
	removes                  // removes; repeating it has no further effect
)

func (n nature) annotations(title string) *mcp.ToolAnnotations {
	destroys, closed := n == changes || n == removes, false
	return &mcp.ToolAnnotations{
		Title: title, ReadOnlyHint: n == looks, DestructiveHint: &destroys,
		IdempotentHint: n == looks || n == idempotent || n == removes, OpenWorldHint: &closed,
	}
}

// needs are the operations that a tool makes the daemon carry out.
type needs struct{ ops, some []ops.Op }

// does returns what each call of a tool needs.
func does(all ...ops.Op) needs { return needs{ops: all} }

// sometimes adds what only some calls need.
func (n needs) sometimes(some ...ops.Op) needs {
	n.some = some
	return n
}

// call is one use of a tool.
type call struct {
	*atoll.Client
	server *Server
	req    *mcp.CallToolRequest
	// content follows the JSON of the result.
	content []mcp.Content
}

// add adds a tool to a server. The daemon checks the permissions for the requests that it
// needs. The result is the JSON of the output as text:
// an output schema would make clients show each result to the model twice.
// Errors become results that tell the model what is wrong and what to do.
func add[In, Out any](s *Server, name, title, description string, n nature, needs needs, do func(ctx context.Context, c *call, in In) (Out, error)) {
	s.routes = append(s.routes, ops.Route{Name: name, Ops: needs.ops, Some: needs.some})
	takes := schemaOf[In]()
	tool := &mcp.Tool{Name: name, Title: title, Description: description, Annotations: n.annotations(title), InputSchema: takes}
	run := func(ctx context.Context, req *mcp.CallToolRequest) ([]mcp.Content, error) {
		client, err := s.clientOf(req.Extra)
		if err != nil {
			return nil, err
		}
		var in In
		if err := decode(req.Params.Arguments, takes, name, &in); err != nil {
			return nil, err
		}
		c := &call{Client: client, server: s, req: req}
		out, err := do(ctx, c, in)
		if err != nil {
			return nil, err
		}
		text, err := json.Marshal(out)
		return append([]mcp.Content{&mcp.TextContent{Text: string(text)}}, c.content...), err
	}
	s.mcp.AddTool(tool, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		content, err := run(ctx, req)
		if err != nil {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: told(err).Error()}}, IsError: true}, nil
		}
		return &mcp.CallToolResult{Content: content}, nil
	})
}

// sandbox returns the sandbox of that name or id.
func (c *call) sandbox(ctx context.Context, ref string) (*atoll.Sandbox, error) {
	return find(ctx, c.Client, ref)
}

// find returns the sandbox of that name or id. It validates the name, so that
// an invalid one does not get into a request path.
func find(ctx context.Context, c *atoll.Client, ref string) (*atoll.Sandbox, error) {
	if err := sandbox.ValidateName(ref); err != nil {
		return nil, &sandbox.Error{
			Code: sandbox.CodeInvalid, Subject: "sandbox", Message: "is not the name or id of a sandbox",
			Hint: "call sandbox_list to see the names",
		}
	}
	b, err := c.Get(ctx, ref)
	if e := (*sandbox.Error)(nil); errors.As(err, &e) && e.Code == sandbox.CodeNotFound {
		known := *e
		known.Hint = "call sandbox_list to see which sandboxes there are, or sandbox_create to make one"
		return nil, &known
	}
	return b, err
}

// process refuses strings that cannot be the id of a process.
func process(id string) error {
	ok := id != "" && len(id) <= bounds.MaxNameLen
	for _, r := range []byte(id) {
		ok = ok && (r == '-' || r == '_' || r >= '0' && r <= '9' || r|0x20 >= 'a' && r|0x20 <= 'z')
	}
	if !ok {
		return &sandbox.Error{
			Code: sandbox.CodeInvalid, Subject: "process", Message: "is not the id of a process",
			Hint: "call sandbox_process with the action list to see the ids",
		}
	}
	return nil
}

// next returns a hint for an error that has none.
var next = map[sandbox.Code]string{
	sandbox.CodeInvalid:       "correct the arguments and call again",
	sandbox.CodeNotFound:      "call sandbox_list, or sandbox_files for a path, to see what there is",
	sandbox.CodeGone:          "call sandbox_create to make another",
	sandbox.CodeAlreadyExists: "choose another name, or use the existing object",
	sandbox.CodeConflict:      "call sandbox_inspect for its state; sandbox_resume continues a paused or stopped one",
	sandbox.CodeUnavailable:   "try again; if it stays, ask the user to run: atoll doctor",
	sandbox.CodeUnauthorized:  "ask the user for a valid API key; one is made with: atoll key create",
	sandbox.CodeDenied:        "the API key or a policy does not allow this; ask the user",
	sandbox.CodeExhausted:     "a limit is reached; remove what is not needed any more, or ask for less",
	sandbox.CodeTimeout:       "give it more time, or use sandbox_exec with background",
	sandbox.CodeCanceled:      "call again if it is still needed",
	sandbox.CodeUnsupported:   "this provider cannot do it; create the sandbox with another provider",
	sandbox.CodeStale:         "call sandbox_inspect, then try again",
	sandbox.CodeInternal:      "this is a fault of Atoll; report it to the user",
}

// told returns the text of an error for the model: the message, the code, and
// the next step.
func told(err error) error {
	code, text, hint := sandbox.CodeOf(err), "", ""
	if e := (*sandbox.Error)(nil); errors.As(err, &e) {
		shown := *e
		shown.Op = ""
		text, hint = shown.Error(), e.Hint
	}
	if text == "" {
		text = strings.ReplaceAll(string(code), "_", " ")
	}
	if hint == "" {
		hint = next[code]
	}
	return errors.New(string(code) + ": " + text + "\nNext: " + hint)
}
