package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"mvdan.cc/sh/v3/shell"

	"github.com/atoll-run/atoll/internal/cli/clitest"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
)

// hostile is a daemon whose answers have the form that the API describes, with evil
// for every string and for every key of a map.
type hostile struct {
	Paths      map[string]map[string]operation
	Components struct{ Schemas map[string]schema }

	// mode is one of the modes below.
	mode string
}

// How a hostile daemon answers.
const (
	full    = "full"    // with all fields
	sparse  = "sparse"  // without the fields of what is in an answer
	blank   = "blank"   // with objects without fields
	refuses = "refuses" // with errors
)

type operation struct {
	Responses map[string]struct {
		Content map[string]struct{ Schema schema }
	}
}

type schema struct {
	Ref        string `json:"$ref"`
	Type       any
	Format     string
	Encoding   string `json:"contentEncoding"`
	Properties map[string]schema
	Items      *schema
	Additional any `json:"additionalProperties"`
}

// value makes a value of the form that a schema describes.
func (h *hostile) value(s schema, depth int) any {
	if s.Ref != "" {
		return h.value(h.Components.Schemas[filepath.Base(s.Ref)], depth)
	}
	kind, _ := s.Type.(string)
	if kinds, ok := s.Type.([]any); ok {
		kind, _ = kinds[0].(string)
	}
	switch {
	case depth > 12:
		return nil
	case s.Format == "date-time":
		return "2026-01-31T00:00:00Z"
	case s.Encoding == "base64":
		return "b2sK" // what a command wrote, which is passed on as it is
	case kind == "integer" || kind == "number":
		return 1
	case kind == "boolean":
		return true
	case kind == "array":
		return []any{h.value(*s.Items, depth+1)}
	case kind == "object":
		out := map[string]any{}
		if h.mode == sparse && depth > 0 {
			return out
		}
		for name, p := range s.Properties {
			out[name] = h.value(p, depth+1)
		}
		if of, ok := s.Additional.(map[string]any); ok {
			var inner schema
			text, _ := json.Marshal(of)
			_ = json.Unmarshal(text, &inner)
			out[clitest.Evil] = h.value(inner, depth+1)
		}
		return out
	}
	return clitest.Evil
}

// schemaOf returns the schema of what a request is answered with.
func (h *hostile) schemaOf(r *http.Request) (s schema, found bool) {
	words := strings.Split(r.URL.Path, "/")
	best := -1
	for path, operations := range h.Paths {
		parts := strings.Split(path, "/")
		literal := 0
		if len(parts) != len(words) {
			continue
		}
		other := false
		for i, p := range parts {
			if p == words[i] {
				literal++
			} else if !strings.HasPrefix(p, "{") {
				other = true
			}
		}
		if other {
			continue
		}
		for _, code := range []string{"200", "201"} {
			content, ok := operations[strings.ToLower(r.Method)].Responses[code].Content["application/json"]
			if ok && literal > best {
				best, s, found = literal, content.Schema, true
			}
		}
	}
	return s, found
}

func (h *hostile) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	write := func(v any) {
		text, _ := json.Marshal(v)
		// Not all of it is UTF-8.
		_, _ = w.Write(append(bytes.ReplaceAll(text, []byte(`\u0007`), []byte("\\u0007\x9b")), '\n'))
	}
	event := h.value(schema{Ref: "Event"}, 0)
	problem := map[string]any{"code": clitest.Evil, "op": clitest.Evil, "subject": clitest.Evil, "detail": clitest.Evil, "hint": clitest.Evil, "request": clitest.Evil, "rule": clitest.Evil}
	s, found := h.schemaOf(r)
	switch {
	case h.mode == refuses:
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusConflict)
		write(problem)
	case h.mode == blank || r.URL.Query().Get("after") != "" || r.URL.Query().Get("cursor") != "":
		_, _ = io.WriteString(w, "{}\n")
	case strings.HasSuffix(r.URL.Path, "/events/stream"):
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "event: event\ndata: ")
		write(event)
		_, _ = io.WriteString(w, "\nevent: error\ndata: ")
		write(problem)
	case strings.HasSuffix(r.URL.Path, "/audit/export"):
		write(map[string]any{"hash": clitest.Evil, "event": event})
	case strings.HasSuffix(r.URL.Path, "/files/list"):
		write(map[string]any{"path": clitest.Evil, "type": clitest.Evil, "target": clitest.Evil})
	case strings.HasSuffix(r.URL.Path, "/v1/templates") && r.Method == http.MethodPost:
		for _, of := range []map[string]any{{"text": clitest.Evil}, {"text": clitest.Evil, "cached": true}, {"text": clitest.Evil, "output": true}} {
			write(map[string]any{"event": of})
		}
		write(map[string]any{"template": h.value(schema{Ref: "Template"}, 0)})
	case found:
		w.Header().Set("Content-Type", "application/json")
		write(h.value(s, 0))
	case r.Method == http.MethodGet:
		w.WriteHeader(http.StatusInternalServerError)
		write(problem)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

func newHostile(t *testing.T) *hostile {
	t.Helper()
	text, err := os.ReadFile("../../docs/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	h := hostile{mode: full}
	if err := json.Unmarshal(text, &h); err != nil {
		t.Fatal(err)
	}
	return &h
}

// calls are command lines of every command: its examples, and others that show more.
func calls(t *testing.T) (all [][]string) {
	t.Helper()
	add := func(line string) {
		words, err := shell.Fields(line, func(string) string { return "" })
		if err != nil || len(words) < 2 {
			return // such as: eval "$(atoll e2b env)"
		}
		all = append(all, words[1:])
	}
	root := (&App{Env: &target.Env{}}).root()
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		for line := range strings.Lines(cmd.Example) {
			for _, call := range ours(line) {
				add(call)
			}
		}
		if cmd.ValidArgsFunction != nil {
			all = append(all, append(append([]string{"__complete"}, strings.Fields(cmd.CommandPath())[1:]...), ""))
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(root)
	for _, more := range []string{
		"ls -q", "ls --watch", "ls --format json", `ls --format '{{.Name}}\t{{.Labels}}'`, `inspect --format '{{json .}}' demo`, "ps demo", "top --no-stream --json",
		"events --follow", "events --follow --all-tenants", "events --all-tenants", "events --sandbox demo", "egress demo --follow", "egress demo --suggest", "egress demo --denied",
		"snapshot ls", "snapshot ls -q", "port ls", "port preview demo", "port preview demo 8000", "port open --no-browser demo 8000", "port url demo 8000", "port token demo 8000",
		"profile learn demo --allowed", "profile test docs https://example.com/", "template build -t tools .", "template inspect tools", "template ls", "key create ci", "secret ls",
		"session attach notes", "session targets notes", "session inspect notes", "session envelope notes", "session swap notes docker", "session run-on notes docker -- uname",
		"workspace inspect notes", "workspace history notes", "workspace diff notes 1 2", "workspace verify notes", "provider ls", "provider show " + "gvisor", "provider choose", "doctor", "usage",
		"policy show", "policy explain --memory 8g", "policy reload", "tenant show", "tenant ls", "audit verify", "exec demo -- true", "exec -d demo -- true", "logs demo", "kill demo", "run -- true", "run -d -- true",
		"cp demo:/x y", "cp hello.txt demo:/", "attach demo", "shell demo", "terminal demo", "fork demo", "stop demo", "rm --force demo", "rm --all", "update --memory 1g demo", "computer cursor demo",
		`__complete run --image ""`, `__complete run --snapshot ""`, `__complete run --workspace ""`, `__complete ls --tenant ""`, `__complete cp demo:/ ""`, `__complete cp demo:/`,
	} {
		add("atoll " + more)
	}
	return slices.DeleteFunc(all, func(call []string) bool {
		whole := strings.Join(call, " ")
		browser := call[0] == "console" || strings.HasPrefix(whole, "port open")
		return slices.Contains([]string{"up", "down", "mcp"}, call[0]) || browser && !slices.Contains(call, "--no-browser") ||
			strings.HasPrefix(whole, "audit export") || // the bytes that were hashed: see TestAuditOnTerminal
			strings.HasPrefix(whole, "computer clipboard") || // what a program copied, byte for byte, unless it goes to a terminal
			strings.HasPrefix(whole, "session run-on") // what a command wrote
	})
}

// The strings that a daemon answers with reach the terminal visibly or not at all,
// whichever command shows them.
func TestAttackTerminalByADaemon(t *testing.T) {
	h := newHostile(t)
	server := httptest.NewServer(h)
	defer server.Close()
	all := calls(t)
	dir := t.TempDir()
	t.Chdir(dir)
	t.Setenv("ATOLL_STATE_DIR", filepath.Join(dir, "state"))
	for name, text := range map[string]string{
		"Dockerfile": "FROM host\n", "hello.txt": "hello\n", "notes.json": "{}", "profile.yaml": "name: docs\n", "value": "secret",
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	env := map[string]string{
		"ATOLL_HOST": server.URL, "ATOLL_KEY": "atoll_key", "XDG_CONFIG_HOME": filepath.Join(dir, "config"), "EDITOR": "true", "HOME": dir,
	}
	run := func(call []string) (out, said string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		var stdout, stderr bytes.Buffer
		a := &App{Env: &target.Env{
			Providers: []target.ProviderInfo{{Name: "gvisor"}},
			Term:      &term.Term{Stdin: strings.NewReader("value"), Stdout: &stdout, Stderr: &stderr, LookupEnv: clitest.Lookup(env)},
		}}
		defer func() {
			if failed := recover(); failed != nil {
				trace := make([]byte, 4096)
				t.Errorf("atoll %q: %v\n%s", call, failed, trace[:runtime.Stack(trace, false)])
			}
		}()
		a.Main(ctx, call)
		for stream, text := range map[string]string{"output": stdout.String(), "error": stderr.String()} {
			if found := clitest.Harm(text); found != "" {
				t.Errorf("atoll %q: standard %s contains %s: %q", call, stream, found, text)
			}
		}
		return stdout.String(), stderr.String()
	}
	var mu sync.Mutex
	shown := map[string]bool{}
	try := func(call []string) {
		out, said := run(call)
		mu.Lock()
		defer mu.Unlock()
		if strings.Contains(out+said, `\u202e`) {
			shown[strings.Join(call, " ")] = true
		}
		if !slices.Contains(call, "--json") {
			return
		}
		for d := json.NewDecoder(strings.NewReader(out)); ; {
			var v any
			if err := d.Decode(&v); errors.Is(err, io.EOF) {
				return
			} else if err != nil {
				t.Errorf("atoll %q: the output is not JSON: %v: %s", call, err, out)
				return
			}
		}
	}
	for _, mode := range []string{full, sparse, blank, refuses} {
		h.mode = mode
		var g errgroup.Group
		g.SetLimit(8)
		for _, call := range all {
			g.Go(func() error {
				try(call)
				cmd, _, err := (&App{Env: &target.Env{}}).root().Find(call)
				if err == nil && cmd.Flags().Lookup("json") != nil && !slices.Contains(call, "--json") {
					try(slices.Insert(slices.Clone(call), len(strings.Fields(cmd.CommandPath()))-1, "--json"))
				}
				return nil
			})
		}
		_ = g.Wait()
	}
	if enough := len(all); len(shown) < enough {
		t.Errorf("only %d of %d calls, some of them with and without --json, showed what the daemon answered", len(shown), len(all))
	}
}

// The log is exported byte by byte, but not to a terminal.
func TestAuditOnTerminal(t *testing.T) {
	h := newHostile(t)
	server := httptest.NewServer(h)
	defer server.Close()
	terminal, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	a := &App{Env: &target.Env{Term: &term.Term{Stdin: strings.NewReader(""), Stdout: tty, Stderr: io.Discard, LookupEnv: func(name string) (string, bool) {
		return server.URL, name == "ATOLL_HOST"
	}}}}
	read := make(chan string)
	go func() {
		text, _ := io.ReadAll(terminal) // an error is the end of what was written
		read <- string(text)
	}()
	if code := a.Main(t.Context(), []string{"audit", "export"}); code != 0 {
		t.Errorf("code %d", code)
	}
	_ = tty.Close()
	text := strings.ReplaceAll(<-read, "\r\n", "\n") // of the terminal
	if found := clitest.Harm(text); found != "" || !strings.Contains(text, `\u202e`) {
		t.Errorf("contains %s: %q", found, text)
	}
}

// passedOn are the functions that use our streams without those of term/style.go, and why.
var passedOn = map[string]string{
	"Main":          "help and completions, which are made visible",
	"screenshotCmd": "a picture, never to a terminal",
	"copyOut":       "an archive, never to a terminal",
	"copyLogs":      "output of a command in a sandbox",
	"runOnCmd":      "output of a command in a sandbox",
	"foreground":    "output of a command in a sandbox",
	"mcpCmd":        "messages for a program",
	"openEditor":    "the user's editor",
	"Terminal":      "looks for a terminal",
	"Watch":         "looks for a terminal",
	"readerGone":    "only the name of standard output",
	"Progress":      "a bar, with visible text",
	"upCmd":         "a log, which quotes its values",
}

// All that Atoll says goes through term/style.go.
func TestOutputGoesThroughStyle(t *testing.T) {
	t.Parallel()
	var files []string
	if err := filepath.WalkDir(".", func(path string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(path, ".go") {
			files = append(files, filepath.ToSlash(path))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") || name == "term/style.go" {
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			fine := map[ast.Node]bool{}
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CallExpr:
					called := ""
					switch fun := n.Fun.(type) {
					case *ast.Ident:
						called = fun.Name
					case *ast.SelectorExpr:
						called = fun.Sel.Name
					}
					if slices.Contains([]string{"IsTerminal", "Paint", "WriteJSON", "Writef"}, called) {
						for _, arg := range n.Args {
							fine[arg] = true
						}
					}
				case *ast.SelectorExpr:
					of := ""
					switch x := n.X.(type) {
					case *ast.Ident:
						of = x.Name
					case *ast.SelectorExpr:
						of = x.Sel.Name
					}
					stream := n.Sel.Name == "Stdout" || n.Sel.Name == "Stderr"
					if !stream || !slices.Contains([]string{"a", "t", "env", "Env", "Term", "os"}, of) || fine[n] {
						break
					}
					if passedOn[f.Name.Name] == "" {
						t.Errorf("%s: %s uses %s.%s; print with the functions of term/style.go", set.Position(n.Pos()), f.Name.Name, of, n.Sel.Name)
					}
					used[f.Name.Name] = true
				}
				return true
			})
		}
	}
	for name := range passedOn {
		if !used[name] {
			t.Errorf("%s is on the list, and does not use our streams", name)
		}
	}
}
