package mcpserver

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

// The tool reads and sets the clipboard by the actions of the HTTP API, whose
// permissions apply. A long text is shown in part (RB-79).
func TestClipboard(t *testing.T) {
	t.Parallel()
	text := "" // of the desktop
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, out any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(out)
	}
	mux.HandleFunc("GET /v1/sandboxes/box", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, sandbox.Sandbox{ID: "sb-1", Name: "box", State: sandbox.Running})
	})
	mux.HandleFunc("POST /v1/sandboxes/{id}/computer", func(w http.ResponseWriter, r *http.Request) {
		var in viewing.ComputerRequest
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil || len(in.Actions) != 1 {
			t.Errorf("the request is %+v, %v", in, err)
			return
		}
		var out viewing.ComputerResult
		switch do := in.Actions[0]; do.Action {
		case "copy":
			text = do.Text
		case "clipboard":
			out.Clipboard = &text
		default:
			t.Errorf("the action is %+v", do)
		}
		answer(w, out)
	})
	daemon := httptest.NewServer(mux)
	t.Cleanup(daemon.Close)
	c, err := atoll.New(atoll.Options{Host: daemon.URL, Key: "key"})
	if err != nil {
		t.Fatal(err)
	}
	session := connectedTo(t, c)
	use := func(arguments map[string]any, wantErr bool) (out clipboardOut) {
		t.Helper()
		res, err := session.CallTool(t.Context(), &mcp.CallToolParams{Name: "computer_clipboard", Arguments: arguments})
		if err != nil || res.IsError != wantErr {
			t.Fatalf("%v: %+v, %v", arguments, res, err)
		}
		if !wantErr {
			if err := json.Unmarshal([]byte(res.Content[0].(*mcp.TextContent).Text), &out); err != nil {
				t.Fatal(err)
			}
		}
		return out
	}
	if out := use(map[string]any{"sandbox": "box"}, false); out.Text != "" || out.Bytes != 0 {
		t.Errorf("without a clipboard: %+v", out)
	}
	if out := use(map[string]any{"sandbox": "box", "set": "hällo"}, false); out.Text != "hällo" || text != "hällo" {
		t.Errorf("set: %+v; the desktop has %q", out, text)
	}
	if out := use(map[string]any{"sandbox": "box"}, false); out.Text != "hällo" || out.Bytes != 6 {
		t.Errorf("read: %+v", out)
	}
	text = strings.Repeat("x", 1<<20)
	if out := use(map[string]any{"sandbox": "box"}, false); len(out.Text) > maxOutput+100 || out.Bytes != 1<<20 || !strings.Contains(out.Text, "left out") {
		t.Errorf("a long text has %d of %d bytes", len(out.Text), out.Bytes)
	}
	use(map[string]any{"sandbox": "box", "text": "x"}, true)
	use(map[string]any{}, true)
}
