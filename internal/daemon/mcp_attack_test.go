package daemon_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/mcpserver"
	"github.com/atoll-run/atoll/sandbox"
)

// bearing sends a key with every request.
type bearing string

func (b bearing) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(b))
	return http.DefaultTransport.RoundTrip(r)
}

// toolArguments are the arguments of the tools other than names of objects.
var toolArguments = map[string]any{
	"command": "true", "code": "1", "patch": "*** Begin Patch\n*** Add File: a\n*** End Patch", "kind": "snapshots", "path": "/x", "content": "x", "port": 80, "action": "list", "url": "https://a.example/",
	"x": 1, "y": 1, "to_x": 2, "to_y": 2, "text": "x", "keys": []string{"a"}, "scroll_y": 100, "seconds": 1,
}

// TestAttackForeignNamesThroughMCP calls every tool with names of another
// tenant, through a server that itself acts for the machine's owner. The
// response is the same as for names that do not exist.
func TestAttackForeignNamesThroughMCP(t *testing.T) {
	m := daemontest.New(t)
	d := m.Start(t, nil)
	ids := foreignThings(t, m.Store(t), d)
	s := httptest.NewServer(mcpserver.New(daemontest.Client(t, d), "test").Handler())
	t.Cleanup(s.Close)
	client := mcp.NewClient(&mcp.Implementation{Name: "evil", Version: "1"}, nil)
	session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{
		Endpoint: s.URL, HTTPClient: &http.Client{Transport: bearing(tokenOf(t, d, "evil", "admin"))},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })

	kinds := map[string]string{"sandbox": "sandboxes", "snapshot": "snapshots", "profile": "profiles"}
	tried := 0
	for tool, err := range session.Tools(t.Context(), nil) {
		ok(t, err)
		text, err := json.Marshal(tool.InputSchema)
		ok(t, err)
		var schema struct{ Properties map[string]any }
		ok(t, json.Unmarshal(text, &schema))
		for property, kind := range kinds {
			if schema.Properties[property] == nil {
				continue
			}
			for _, foreign := range ids[kind] {
				call := func(name string) string {
					args := map[string]any{property: name}
					for key, value := range toolArguments {
						if schema.Properties[key] != nil && (property != "sandbox" || key != "url") {
							args[key] = value
						}
					}
					got, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: tool.Name, Arguments: args})
					ok(t, err)
					text, err := json.Marshal(got)
					ok(t, err)
					if !got.IsError {
						t.Errorf("%s with the %s %s: %s", tool.Name, property, name, text)
					}
					return strings.ReplaceAll(string(text), name, "NAME")
				}
				if theirs, nobodys := call(foreign), call(absentLike(foreign)); theirs != nobodys || !strings.Contains(theirs, string(sandbox.CodeNotFound)) {
					t.Errorf("%s with a %s of another tenant: %s\nand nobody's: %s", tool.Name, property, theirs, nobodys)
				}
				tried++
			}
		}
	}
	if tried < 20 {
		t.Errorf("%d calls were tried: what are the properties called now?", tried)
	}
	for _, id := range ids["sandboxes"] {
		for _, rest := range []string{"", "/files/etc/hostname", "/processes/1/log"} {
			if got, err := session.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "atoll://sandboxes/" + id + rest}); err == nil {
				t.Errorf("he reads %s%s: %+v", id, rest, got)
			}
		}
	}
	if got, err := session.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "atoll://sandboxes"}); err != nil || strings.Contains(got.Contents[0].Text, "mine-a") {
		t.Errorf("the list of sandboxes: %+v, %v", got, err)
	}
}
