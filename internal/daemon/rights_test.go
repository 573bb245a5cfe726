package daemon_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/idtoken"
	"github.com/atoll-run/atoll/internal/mcpserver"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/server/api"
	"github.com/atoll-run/atoll/internal/server/bridgeapi"
	"github.com/atoll-run/atoll/internal/server/console"
	"github.com/atoll-run/atoll/internal/server/e2bapi"
	"github.com/atoll-run/atoll/internal/server/portproxy"
)

var update = flag.Bool("update", false, "write docs/reference/rights.md anew")

const rightsPage = "../../docs/reference/rights.md"

// face is one of the daemon's APIs.
type face struct {
	name, about string
	routes      []ops.Route
}

// The names of the APIs in the page.
const (
	nativeFace  = "The HTTP API"
	e2bFace     = "The E2B API: control plane"
	e2bDataFace = "The E2B API: inside a sandbox"
	bridgeFace  = "Cloudflare's bridge"
	mcpFace     = "MCP"
	portFace    = "Ports"
	consoleFace = "The web console"
)

// faces returns all routes of the daemon.
func faces(t *testing.T) []face {
	t.Helper()
	issuer, err := idtoken.Open(filepath.Join(t.TempDir(), "identity.key"), nil)
	ok(t, err)
	e2b := e2bapi.New(e2bapi.Services{Identity: issuer}, e2bapi.Options{Secret: make([]byte, 32)})
	bridge := bridgeapi.New(bridgeapi.Services{}, bridgeapi.Options{})
	t.Cleanup(func() { ok(t, e2b.Close()); ok(t, bridge.Close()) })
	metrics := ops.Route{Name: "GET /metrics", Ops: []ops.Op{ops.MetricsGet}} // which package daemon serves itself
	return []face{
		{nativeFace, "A request has a key, or comes from the owner of the machine over the socket. The requests for a sandbox are there for the sandbox of a session, too. " +
			"`GET /metrics` is only for keys of the tenant `default`, because it is about all tenants. A viewer of a stream sends the token of the stream.", append(api.New(api.Services{}, api.Options{}).Routes(), metrics)},
		{e2bFace, "A request has a key. The files of volumes and uploads are for callers with a token or an address that a key was given.", e2b.ControlRoutes()},
		{e2bDataFace, "A request has the access token of the sandbox, which has the rights of the key that got it. As at E2B, everybody who knows the id of a sandbox reaches its ports, unless the sandbox is private; the code interpreter always needs a token.", e2b.DataRoutes()},
		{bridgeFace, "A request has a key. A sandbox that does not exist is made when it is first used, which needs `write`.", bridge.Routes()},
		{mcpFace, "Each tool and resource uses the HTTP API with the key of the caller.", mcpserver.New(daemontest.Client(t, daemontest.New(t).Start(t, nil)), "test").Routes()},
		{portFace, "A request has a port token. It is valid for one sandbox, and ends with the key that made it.", portproxy.Routes()},
		{consoleFace, "The files of the console are public. Everything else the console does through the HTTP API, with the key of the person who signed in.", console.New(nil).Routes()},
	}
}

const rightsHead = `# Rights

This page is generated from the code: ` + "`go test ./internal/daemon -run RightsPage -update`" + `. Tests send every request with keys that have
one permission each, and compare.

A key has some of the permissions ` + "`read`, `exec`, `write` and `admin`" + `; ` + "`admin`" + ` includes the others. A request needs all
permissions in its row, and those in the last column only sometimes: if it asks for more than the least. *Owner* means the owner of the
machine, whom no key can replace, except that a page signed in by a link of ` + "`atoll console`" + ` may use the requests for nodes and list tenants. *Any key* needs no permission, *open* not even a key. *Token* means that the request has a token or a
secret address, for which its maker needed these permissions.
`

// page returns the page with the routes.
func page(all []face) string {
	var b strings.Builder
	b.WriteString(rightsHead)
	for _, f := range all {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| Request | Needs | Sometimes |\n|---|---|---|\n", f.name, f.about)
		for _, r := range f.routes {
			if strings.HasSuffix(r.Name, "/") && !strings.Contains(r.Name, " ") {
				continue // the answer to requests for routes that do not exist
			}
			needs := inWords(r.Needs())
			switch {
			case r.Open && len(r.Ops) > 0:
				needs = "token: " + needs
			case r.Open:
				needs = "open"
			case len(r.Ops) == 0:
				needs = "any key"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", r.Name, needs, inWords(r.May()))
		}
	}
	return b.String()
}

func inWords(verbs []ops.Verb) string {
	words := make([]string, len(verbs))
	for i, v := range verbs {
		if words[i] = "`" + string(v) + "`"; v == ops.Owner {
			words[i] = "owner"
		}
	}
	return strings.Join(words, ", ")
}

// TestRightsPage: the page lists every route with what it needs.
func TestRightsPage(t *testing.T) {
	want := page(faces(t))
	if *update {
		ok(t, os.WriteFile(rightsPage, []byte(want), 0o644))
	}
	got, err := os.ReadFile(rightsPage)
	ok(t, err)
	if string(got) != want {
		t.Error("docs/reference/rights.md is out of date; run: go test ./internal/daemon -run RightsPage -update")
	}
}

// natively are the requests of the HTTP API that do at most what a request of
// another API does. It needs what one of them needs, or more. Those with nothing
// after them give access to nothing.
var natively = map[string]map[string][]string{
	e2bFace: {
		"GET /health": nil, "/": nil, "GET /.well-known/openid-configuration": nil, "GET /.well-known/jwks.json": nil,
		"POST /sandboxes": {"POST /v1/sandboxes"}, "POST /v2/sandboxes": {"POST /v1/sandboxes"},
		"GET /sandboxes": {"GET /v1/sandboxes"}, "GET /v2/sandboxes": {"GET /v1/sandboxes"},
		"GET /sandboxes/{id}": {"GET /v1/sandboxes/{ref}"}, "DELETE /sandboxes/{id}": {"DELETE /v1/sandboxes/{ref}"},
		"POST /sandboxes/{id}/connect":              {"PATCH /v1/sandboxes/{ref}", "POST /v1/sandboxes/{ref}/resume"},
		"POST /v2/sandboxes/{id}/connect":           {"PATCH /v1/sandboxes/{ref}", "POST /v1/sandboxes/{ref}/resume"},
		"POST /sandboxes/{id}/timeout":              {"PATCH /v1/sandboxes/{ref}"},
		"POST /sandboxes/{id}/refreshes":            {"PATCH /v1/sandboxes/{ref}"},
		"GET /sandboxes/{id}/metrics":               {"GET /v1/sandboxes/{ref}/usage"},
		"GET /sandboxes/metrics":                    {"GET /v1/sandboxes", "GET /v1/sandboxes/{ref}/usage"},
		"POST /sandboxes/{id}/pause":                {"POST /v1/sandboxes/{ref}/pause", "POST /v1/sandboxes/{ref}/stop"},
		"POST /sandboxes/{id}/resume":               {"POST /v1/sandboxes/{ref}/resume", "POST /v1/sandboxes/{ref}/start"},
		"POST /sandboxes/{id}/fork":                 {"POST /v1/sandboxes/{ref}/fork"},
		"POST /sandboxes/{id}/snapshots":            {"POST /v1/sandboxes/{ref}/snapshots"},
		"GET /snapshots":                            {"GET /v1/snapshots"},
		"DELETE /templates/{id}":                    {"DELETE /v1/templates/{name}", "DELETE /v1/snapshots/{snapshot}"},
		"PUT /sandboxes/{id}/network":               {"PATCH /v1/sandboxes/{ref}"},
		"GET /sandboxes/{id}/logs":                  {"GET /v1/events"},
		"GET /v2/sandboxes/{id}/logs":               {"GET /v1/events"},
		"GET /secrets":                              {"GET /v1/secrets"},
		"POST /secrets":                             {"POST /v1/secrets"},
		"GET /secrets/{id}":                         {"GET /v1/secrets"},
		"POST /secrets/{id}":                        {"PUT /v1/secrets/{name}/value"},
		"DELETE /secrets/{id}":                      {"DELETE /v1/secrets/{name}"},
		"POST /v3/templates":                        {"POST /v1/templates"},
		"POST /v2/templates":                        {"POST /v1/templates"},
		"GET /templates":                            {"GET /v1/templates"},
		"GET /v2/templates":                         {"GET /v1/templates"},
		"GET /templates/{id}":                       {"GET /v1/templates/{name}"},
		"PATCH /templates/{id}":                     {"PUT /v1/templates/{name}/public"},
		"PATCH /v2/templates/{id}":                  {"PUT /v1/templates/{name}/public"},
		"GET /templates/{id}/files/{hash}":          {"POST /v1/templates"},
		"POST /v2/templates/{id}/builds/{build}":    {"POST /v1/templates"},
		"GET /templates/{id}/builds/{build}/status": {"GET /v1/templates/{name}"},
		"GET /templates/{id}/builds/{build}/logs":   {"GET /v1/templates/{name}"},
		"GET /templates/{id}/{what}":                {"GET /v1/templates/{name}"},
		"GET /templates/{id}/{what}/{name}":         {"GET /v1/templates/{name}"},
		"POST /templates/tags":                      {"POST /v1/templates/{name}/tag"},
		"DELETE /templates/tags":                    {"DELETE /v1/templates/{name}"},
		"PUT /uploads/{ticket}":                     {"POST /v1/templates"},
		"GET /volumes":                              {"GET /v1/workspaces"},
		"POST /volumes":                             {"POST /v1/workspaces"},
		"GET /volumes/{id}":                         {"GET /v1/workspaces/{name}"},
		"DELETE /volumes/{id}":                      {"DELETE /v1/workspaces/{name}"},
		"GET /volumecontent/{id}/path":              {"GET /v1/workspaces/{name}/diff"},
		"PATCH /volumecontent/{id}/path":            {"POST /v1/workspaces/{name}/restore"},
		"DELETE /volumecontent/{id}/path":           {"POST /v1/workspaces/{name}/restore"},
		"GET /volumecontent/{id}/dir":               {"GET /v1/workspaces/{name}/diff"},
		"POST /volumecontent/{id}/dir":              {"POST /v1/workspaces/{name}/restore"},
		"GET /volumecontent/{id}/file":              {"GET /v1/workspaces/{name}/diff"},
		"PUT /volumecontent/{id}/file":              {"POST /v1/workspaces/{name}/restore"},
	},
	e2bDataFace: {
		"GET /health": nil, "/": nil,
		"GET /files":                              {"GET /v1/sandboxes/{ref}/files"},
		"POST /files":                             {"PUT /v1/sandboxes/{ref}/files"},
		"GET /envs":                               {"POST /v1/sandboxes/{ref}/exec"},
		"GET /metrics":                            {"GET /v1/sandboxes/{ref}/usage"},
		"/process.Process/List":                   {"GET /v1/sandboxes/{ref}/processes"},
		"/process.Process/Start":                  {"GET /v1/sandboxes/{ref}/exec"},
		"/process.Process/Connect":                {"GET /v1/sandboxes/{ref}/processes/{id}/attach"},
		"/process.Process/Update":                 {"GET /v1/sandboxes/{ref}/processes/{id}/attach"},
		"/process.Process/SendInput":              {"GET /v1/sandboxes/{ref}/processes/{id}/attach"},
		"/process.Process/StreamInput":            {"GET /v1/sandboxes/{ref}/processes/{id}/attach"},
		"/process.Process/CloseStdin":             {"GET /v1/sandboxes/{ref}/processes/{id}/attach"},
		"/process.Process/SendSignal":             {"POST /v1/sandboxes/{ref}/processes/{id}/signal"},
		"/filesystem.Filesystem/Stat":             {"GET /v1/sandboxes/{ref}/files/stat"},
		"/filesystem.Filesystem/MakeDir":          {"POST /v1/sandboxes/{ref}/files/mkdir"},
		"/filesystem.Filesystem/Move":             {"POST /v1/sandboxes/{ref}/files/move"},
		"/filesystem.Filesystem/ListDir":          {"GET /v1/sandboxes/{ref}/files/list"},
		"/filesystem.Filesystem/Remove":           {"DELETE /v1/sandboxes/{ref}/files"},
		"/filesystem.Filesystem/CreateWatcher":    {"GET /v1/sandboxes/{ref}/files/watch"},
		"/filesystem.Filesystem/GetWatcherEvents": {"GET /v1/sandboxes/{ref}/files/watch"},
		"/filesystem.Filesystem/RemoveWatcher":    {"GET /v1/sandboxes/{ref}/files/watch"},
		"/filesystem.Filesystem/WatchDir":         {"GET /v1/sandboxes/{ref}/files/watch"},
		"port 49999, the code interpreter":        {"GET /v1/sandboxes/{ref}/ports/{port}", "POST /v1/sandboxes/{ref}/exec"},
		"a port of a sandbox":                     {"GET /v1/sandboxes/{ref}/ports/{port}"},
	},
	bridgeFace: {
		"GET /health": nil, "/": nil, "GET /v1/openapi.json": nil, "POST /v1/sandbox/{id}/unmount": nil,
		"POST /v1/sandbox":                          {"POST /v1/sandboxes"},
		"DELETE /v1/sandbox/{id}":                   {"DELETE /v1/sandboxes/{ref}"},
		"GET /v1/sandbox/{id}/running":              {"GET /v1/sandboxes/{ref}"},
		"POST /v1/sandbox/{id}/exec":                {"POST /v1/sandboxes/{ref}/exec"},
		"GET /v1/sandbox/{id}/file/{path...}":       {"GET /v1/sandboxes/{ref}/files"},
		"PUT /v1/sandbox/{id}/file/{path...}":       {"PUT /v1/sandboxes/{ref}/files"},
		"POST /v1/sandbox/{id}/persist":             {"GET /v1/sandboxes/{ref}/files/archive"},
		"POST /v1/sandbox/{id}/hydrate":             {"PUT /v1/sandboxes/{ref}/files/archive"},
		"GET /v1/sandbox/{id}/pty":                  {"GET /v1/sandboxes/{ref}/exec"},
		"POST /v1/sandbox/{id}/mount":               {"GET /v1/sandboxes/{ref}"},
		"POST /v1/sandbox/{id}/session":             {"PUT /v1/sandboxes/{ref}/files"},
		"DELETE /v1/sandbox/{id}/session/{session}": {"DELETE /v1/sandboxes/{ref}/files", "POST /v1/sandboxes/{ref}/processes/{id}/signal"},
		"POST /v1/sandbox/{id}/tunnel/{port}":       {"POST /v1/sandboxes/{ref}/port-tokens", "PATCH /v1/sandboxes/{ref}"},
		"DELETE /v1/sandbox/{id}/tunnel/{port}":     {"PATCH /v1/sandboxes/{ref}"},
		"the address of a tunnel":                   {"GET /v1/sandboxes/{ref}/ports/{port}"},
	},
	mcpFace: {
		"sandbox_run":           {"POST /v1/sandboxes", "GET /v1/sandboxes/{ref}/exec", "DELETE /v1/sandboxes/{ref}"},
		"sandbox_create":        {"POST /v1/sandboxes"},
		"sandbox_list":          {"GET /v1/sandboxes"},
		"sandbox_inspect":       {"GET /v1/sandboxes/{ref}", "GET /v1/sandboxes/{ref}/processes"},
		"sandbox_remove":        {"DELETE /v1/sandboxes/{ref}"},
		"sandbox_snapshot":      {"POST /v1/sandboxes/{ref}/snapshots"},
		"sandbox_fork":          {"POST /v1/sandboxes/{ref}/fork"},
		"sandbox_pause":         {"POST /v1/sandboxes/{ref}/pause"},
		"sandbox_resume":        {"POST /v1/sandboxes/{ref}/resume", "POST /v1/sandboxes/{ref}/start"},
		"saved_list":            {"GET /v1/snapshots", "GET /v1/templates"},
		"saved_remove":          {"DELETE /v1/snapshots/{snapshot}", "DELETE /v1/templates/{name}"},
		"sandbox_exec":          {"GET /v1/sandboxes/{ref}/exec"},
		"sandbox_search":        {"GET /v1/sandboxes/{ref}", "POST /v1/sandboxes/{ref}/files/search"},
		"sandbox_patch":         {"GET /v1/sandboxes/{ref}", "POST /v1/sandboxes/{ref}/files/patch"},
		"sandbox_git":           {"GET /v1/sandboxes/{ref}", "GET /v1/sandboxes/{ref}/git/status", "GET /v1/sandboxes/{ref}/git/diff", "GET /v1/sandboxes/{ref}/git/log", "GET /v1/sandboxes/{ref}/git/show", "GET /v1/sandboxes/{ref}/git/blame"},
		"code_run":              {"GET /v1/sandboxes/{ref}", "POST /v1/sandboxes/{ref}/code"},
		"sandbox_process":       {"GET /v1/sandboxes/{ref}/processes"},
		"sandbox_read":          {"GET /v1/sandboxes/{ref}/files"},
		"sandbox_write":         {"PUT /v1/sandboxes/{ref}/files"},
		"sandbox_files":         {"GET /v1/sandboxes/{ref}/files/list"},
		"port_url":              {"POST /v1/sandboxes/{ref}/port-tokens"},
		"egress_explain":        {"GET /v1/events"},
		"computer_screenshot":   {"POST /v1/sandboxes/{ref}/computer"},
		"computer_click":        {"PUT /v1/sandboxes/{ref}/desktop"},
		"computer_double_click": {"PUT /v1/sandboxes/{ref}/desktop"},
		"computer_move":         {"PUT /v1/sandboxes/{ref}/desktop"},
		"computer_scroll":       {"PUT /v1/sandboxes/{ref}/desktop"},
		"computer_drag":         {"PUT /v1/sandboxes/{ref}/desktop"},
		"computer_type":         {"PUT /v1/sandboxes/{ref}/desktop"},
		"computer_keypress":     {"PUT /v1/sandboxes/{ref}/desktop"},
		"computer_clipboard":    {"PUT /v1/sandboxes/{ref}/desktop"},
		"atoll://sandboxes":     {"GET /v1/sandboxes"},
		"atoll://sandboxes/{sandbox}/files/{+path}":           {"GET /v1/sandboxes/{ref}/files"},
		"atoll://sandboxes/{sandbox}/processes/{process}/log": {"GET /v1/sandboxes/{ref}/processes/{id}/logs"},
	},
	portFace: {
		"GET /.atoll/open":    nil,
		"a port of a sandbox": {"GET /v1/sandboxes/{ref}/ports/{port}"}, "POST /.atoll/open": {"GET /v1/sandboxes/{ref}/ports/{port}"},
	},
	consoleFace: {"GET /console/": nil, "POST /console/session": nil, "DELETE /console/session": nil},
}

// TestAttackNoAPIAllowsMore: what the HTTP API refuses to a key, no other API
// allows. That each route needs what its table says is the matter of the other
// tests.
func TestAttackNoAPIAllowsMore(t *testing.T) {
	all := faces(t)
	native := map[string]ops.Route{}
	for _, r := range all[0].routes {
		native[r.Name] = r
	}
	for _, f := range all[1:] {
		like := maps.Clone(natively[f.name])
		for _, r := range f.routes {
			same, known := like[r.Name]
			if !known {
				t.Errorf("%s: which requests of the HTTP API do what %s does?", f.name, r.Name)
			}
			for _, name := range same {
				n, known := native[name]
				if !known {
					t.Fatalf("the HTTP API has no %s", name)
				}
				for _, v := range n.Needs() {
					if !slices.Contains(r.Needs(), v) && !slices.Contains(r.Needs(), ops.Admin) {
						t.Errorf("%s: %s needs %v, but %s needs %v", f.name, r.Name, r.Needs(), name, n.Needs())
					}
				}
			}
			if len(same) == 0 && len(r.Ops) > 0 {
				t.Errorf("%s: %s does %v, and has nothing to be compared with", f.name, r.Name, r.Ops)
			}
			delete(like, r.Name)
		}
		for name := range like {
			t.Errorf("%s has no %s any more", f.name, name)
		}
	}
}
