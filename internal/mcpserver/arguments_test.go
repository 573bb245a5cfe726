package mcpserver

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/atoll-run/atoll"
)

// connected returns a client of a server without a daemon.
func connected(t *testing.T) *mcp.ClientSession {
	t.Helper()
	c, err := atoll.New(atoll.Options{Host: "unix://" + t.TempDir() + "/none"})
	if err != nil {
		t.Fatal(err)
	}
	return connectedTo(t, c)
}

// connectedTo returns a client of a server that uses c.
func connectedTo(t *testing.T, c *atoll.Client) *mcp.ClientSession {
	t.Helper()
	t.Cleanup(func() { _ = c.Close() })
	ours, theirs := mcp.NewInMemoryTransports()
	server, err := New(c, "test").mcp.Connect(t.Context(), ours, nil)
	if err != nil {
		t.Fatal(err)
	}
	session, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), theirs, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = session.Close()
		_ = server.Wait()
	})
	return session
}

func TestWrongArguments(t *testing.T) {
	t.Parallel()
	session := connected(t)
	for _, c := range []struct{ tool, arguments, want string }{
		{"sandbox_exec", `{"sandbox":"a","cmd":"true"}`, "invalid: cmd: is not an argument of sandbox_exec\nNext: sandbox_exec takes sandbox (needed), command, args,"},
		{"sandbox_exec", `{"command":"true"}`, "invalid: sandbox: is missing\nNext: sandbox_exec takes sandbox (needed),"},
		{"sandbox_exec", `{"sandbox":null,"command":"true"}`, "invalid: sandbox: is missing\n"},
		{"sandbox_exec", `{"sandbox":"a","args":"ls -l"}`, "invalid: args: must be a list of strings, not string\n"},
		{"sandbox_exec", `{"sandbox":"a","command":["ls"]}`, "invalid: command: must be a string, not array\n"},
		{"sandbox_exec", `{"sandbox":"a","command":"true","timeout_seconds":"5s"}`, "invalid: timeout_seconds: must be a number, not string\n"},
		{"sandbox_exec", `{"sandbox":"a","command":"true","background":"yes"}`, "invalid: background: must be true or false, not string\n"},
		{"sandbox_create", `{"env":["A=1"]}`, "invalid: env: must be an object of strings, not array\n"},
		{"sandbox_fork", `{"sandbox":"a","count":1.5}`, "invalid: count: must be a whole number in range, not number 1.5\n"},
		{"port_url", `{"sandbox":"a","port":70000}`, "invalid: port: must be a whole number in range, not number 70000\n"},
		{"port_url", `{"sandbox":"a","port":-1}`, "invalid: port: must be a whole number in range, not number -1\n"},
		{"sandbox_list", `[]`, "invalid: arguments: must be a JSON object\n"},
		{"saved_list", `{"kind":"images"}`, "invalid: kind: is neither snapshots nor templates\n"},
	} {
		res, err := session.CallTool(context.Background(), &mcp.CallToolParams{Name: c.tool, Arguments: json.RawMessage(c.arguments)})
		if err != nil {
			t.Errorf("%s %s: %v, want a result", c.tool, c.arguments, err)
			continue
		}
		text := res.Content[0].(*mcp.TextContent).Text
		if !res.IsError || !strings.HasPrefix(text, c.want) {
			t.Errorf("%s %s: got %q, want an error that begins with %q", c.tool, c.arguments, text, c.want)
		}
	}
}

// TestSizeOfDefinitions bounds what the definitions of all tools cost a model.
// A token of JSON has some 3.5 bytes or more, so that 14,000 bytes are at most
// 4,000 tokens.
func TestSizeOfDefinitions(t *testing.T) {
	t.Parallel()
	size, tools := 0, 0
	for tool, err := range connected(t).Tools(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(map[string]any{"name": tool.Name, "description": tool.Description, "inputSchema": tool.InputSchema})
		if err != nil {
			t.Fatal(err)
		}
		if tool.OutputSchema != nil {
			t.Errorf("%s has an output schema, so its results come twice", tool.Name)
		}
		size += len(text)
		tools++
	}
	if size > 14000 || tools < 18 {
		t.Errorf("the definitions of %d tools have %d bytes, want at least 18 tools and at most 14000 bytes", tools, size)
	}
}
