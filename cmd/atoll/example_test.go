package main

import (
	"bufio"
	"context"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/atoll-run/atoll/internal/need"
)

// verbs finds all commands by reading the help.
func verbs(t *testing.T, path ...string) (found [][]string) {
	t.Helper()
	out, err := exec.Command(built.atoll, append(path, "--help")...).Output()
	if err != nil {
		t.Fatal(err)
	}
	verb := regexp.MustCompile(`(?m)^  ([a-z]+) {2,}\S`)
	_, list, _ := strings.Cut(string(out), "Usage:")
	for _, m := range verb.FindAllStringSubmatch(list, -1) {
		if m[1] == "completion" || m[1] == "help" || m[1] == "atoll" {
			continue
		}
		sub := append(append([]string{}, path...), m[1])
		found = append(found, sub)
		found = append(found, verbs(t, sub...)...)
	}
	return found
}

// examples returns the lines of a command's examples.
func examples(t *testing.T, path []string) []string {
	t.Helper()
	out, err := exec.Command(built.atoll, append(path, "--help")...).Output()
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(out), "Examples:\n")
	if !ok {
		t.Fatalf("atoll %s has no example", strings.Join(path, " "))
	}
	text, _, _ := strings.Cut(rest, "\n\n")
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, strings.TrimSpace(line))
	}
	return lines
}

// TestExamples runs the examples of every command with real sandboxes, each
// command with its own state directory. There is a sandbox called demo, and an
// image debian:12 in a registry of this process.
func TestExamples(t *testing.T) {
	all := verbs(t)
	if len(all) < 15 {
		t.Fatalf("found only %q", all)
	}
	reg := serveImage(t)
	bin := filepath.Dir(link(t))
	sampleConfig, err := filepath.Abs("../../docs/reference/atoll.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		t.Run(strings.Join(path, "-"), func(t *testing.T) {
			t.Parallel()
			e := &exampleRunner{dir: t.TempDir(), env: append(os.Environ(),
				"ATOLL_STATE_DIR="+filepath.Join(t.TempDir(), "state"), "ATOLL_NO_DAEMON=1", "PATH="+bin+":"+os.Getenv("PATH"))}
			if path[0] != "context" { // a context may name a remote daemon
				defer func() { e.try(t, "atoll rm --force --all") }()
			}
			e.prepare(t, path, reg)
			for _, line := range examples(t, path) {
				need.Commands(t, line)
				if testing.Short() && strings.HasPrefix(line, "atoll provider check") {
					continue // each provider's conformance has its own test
				}
				if strings.Contains(line, "--detach") && path[0] == "up" {
					line += " && atoll down"
				} else if path[0] == "up" || strings.Contains(line, "port forward") && !strings.Contains(line, " -d ") || strings.Contains(line, "mcp --listen") || strings.Contains(line, "git watch") { // it runs until it is interrupted
					line = "timeout -s TERM 2 " + line + "; test $? = 124"
				}
				if path[0] == "doctor" || len(path) > 1 && path[1] == "check" {
					e.try(t, line) // their result depends on the machine
					continue
				}
				if len(path) > 1 && path[1] == "choose" { // what fits depends on the machine
					line = "( " + line + " ) 2>&1 | grep '^gvisor '"
				}
				if path[0] == "session" && strings.Contains(line, " docker") { // Docker may be missing here; the error must name it
					line += " 2>&1 | grep docker"
				}
				if len(path) > 1 && path[1] == "preview" { // gvisor has none
					line += " 2>&1 | grep 'no URLs for ports'"
				}
				if e.codeContext != "" {
					line = strings.ReplaceAll(line, "3f0c8a52-0b6e-4e0c-9d1c-0d6b9a0b7a11", e.codeContext)
				}
				if path[0] == "microvm" { // KVM may not work here; the error must name what is missing
					line = "( timeout 60 " + line + " ) 2>&1 | grep -iE 'kvm|qemu|kernel'"
				}
				if path[0] == "machine" || path[0] == "node" { // provider/selfhosted and a guide use real ones; the error must name it here
					line = "( timeout 10 " + line + " </dev/null ) 2>&1 | grep -iE 'machine|daemon'"
				}
				if len(path) > 1 && path[0] == "state" && (path[1] == "restore" || path[1] == "accept") { // the script restore uses them
					line += " 2>&1 | grep 'already runs'"
				}
				if path[0] == "computer" || strings.Contains(line, "--desktop") { // this machine may have what a desktop needs; if not, the error must name it
					line = "said=$( ( " + line + " ) 2>&1 ) || echo \"$said\" | grep -iE 'desktop|demo'"
				}
				line = strings.ReplaceAll(line, "debian:12", reg+"/debian:12")
				line = strings.ReplaceAll(line, "/etc/atoll/atoll.yaml", sampleConfig)
				if e.address != "" {
					line = strings.ReplaceAll(line, "127.0.0.1:7070", e.address)
				}
				if e.published != "" {
					line = strings.ReplaceAll(line, "8080", e.published)
				}
				e.must(t, anyPort(line))
			}
		})
	}
}

// fixedPorts are the ports of this machine on which examples listen, and what
// listens on any free port instead.
var fixedPorts = []struct {
	fixed *regexp.Regexp
	free  string
}{
	{regexp.MustCompile(`(--listen) 127\.0\.0\.1:\d+`), "$1 127.0.0.1:0"},
	{regexp.MustCompile(`(atoll up --(?:e2b|bridge))\b`), "$1=127.0.0.1:0"},
	{regexp.MustCompile(`(port forward (?:-d )?demo) (\d+)($|[ ;])`), "$1 0:$2$3"},
	{regexp.MustCompile(` \d{4}:(\d+)\b`), " 0:$1"},
}

// anyPort makes an example listen on free ports.
func anyPort(line string) string {
	for _, p := range fixedPorts {
		line = p.fixed.ReplaceAllString(line, p.free)
	}
	return line
}

// Examples listen on free ports only.
func TestExamplesUseFreePorts(t *testing.T) {
	for line, want := range map[string]string{
		"atoll up --listen 127.0.0.1:7070 --plain":  "atoll up --listen 127.0.0.1:0 --plain",
		"atoll mcp --listen 127.0.0.1:7071 --plain": "atoll mcp --listen 127.0.0.1:0 --plain",
		"atoll up --e2b":                                                   "atoll up --e2b=127.0.0.1:0",
		"atoll up --bridge; test $? = 124":                                 "atoll up --bridge=127.0.0.1:0; test $? = 124",
		"atoll port forward demo 8000":                                     "atoll port forward demo 0:8000",
		"timeout 2 atoll port forward demo 8000; test $? = 124":            "timeout 2 atoll port forward demo 0:8000; test $? = 124",
		"atoll port forward demo 0:8000 5433:5432":                         "atoll port forward demo 0:8000 0:5432",
		"atoll port forward -d demo 8080:80":                               "atoll port forward -d demo 0:80",
		"atoll run -d -p 8080:8000 -- python3 -m http.server 8000":         "atoll run -d -p 0:8000 -- python3 -m http.server 8000",
		"ATOLL_HOST=http://127.0.0.1:7070 atoll port url demo 8000":        "ATOLL_HOST=http://127.0.0.1:7070 atoll port url demo 8000",
		"atoll run -- 127.0.0.1:34567/debian:12 date '+%H:%M' -u 10:00:00": "atoll run -- 127.0.0.1:34567/debian:12 date '+%H:%M' -u 10:00:00",
	} {
		if got := anyPort(line); got != want {
			t.Errorf("%q listens like %q, want %q", line, got, want)
		}
	}
}

// exampleRunner types lines into a shell.
type exampleRunner struct {
	dir     string
	env     []string
	address string // where the daemon of the examples listens
	// published is the port of the machine that leads to the sandbox demo, if any.
	published string
	// codeContext is the id of a context of the code interpreter, if there is one.
	codeContext string
}

// prepare creates the resources that the examples need.
func (e *exampleRunner) prepare(t *testing.T, path []string, reg string) {
	switch {
	case path[0] == "up":
	case path[0] == "run" || path[0] == "key" || path[0] == "events" || path[0] == "audit" || path[0] == "create" || path[0] == "tenant" || path[0] == "state" || path[0] == "usage" || path[0] == "mcp" || path[0] == "console":
		e.up(t)
	case path[0] == "session":
		e.up(t)
		if len(path) > 1 && path[1] != "create" {
			e.must(t, "atoll session create notes && atoll session exec notes -- sh -c 'echo hello >/root/note'")
		}
		if len(path) > 1 && path[1] == "resume" {
			e.must(t, "atoll session envelope --archive notes.tar notes >notes.json")
		}
	case path[0] == "context":
		e.env = append(e.env, "XDG_CONFIG_HOME="+e.dir)
		e.must(t, "umask 077; echo ak-1 >office.key")
		if last := path[len(path)-1]; last == "use" || last == "rm" {
			e.must(t, "atoll context create office --host https://atoll.example.com:7070 --key-file office.key")
		}
	case path[0] == "terminal" || path[0] == "desktop" || path[0] == "stream" || path[0] == "computer" || path[0] == "record" || path[0] == "code":
		e.up(t)
		e.must(t, "atoll create --name demo")
		if path[0] == "code" {
			need.Program(t, "python3")
			e.must(t, "echo 'x = 1' >plot.py")
		}
		if len(path) > 2 {
			id, err := e.shell(t, "atoll code context create demo")
			if err != nil {
				t.Fatal(id, err)
			}
			e.codeContext = strings.TrimSpace(id)
		}
	case path[0] == "git" || path[0] == "search" || path[0] == "patch":
		e.up(t)
		e.must(t, "atoll create --name demo")
		e.must(t, `atoll exec demo -- sh -ec 'mkdir -p /workspace/src && cd /workspace && git init -q -b main && git config user.name Ada && git config user.email ada@example.com
for n in 1 2; do echo $n >>README.md && git add . && git commit -qm $n; done; echo "func aHandler() {} // TODO" >a.go; touch src/a.ts'`)
		e.must(t, `printf -- '--- a/README.md\n+++ b/README.md\n@@ -1 +1 @@\n-1\n+one\n' >fix.patch`)
	case path[0] == "port":
		e.up(t)
		e.must(t, "atoll run -d --name demo -- sh -c 'echo started; sleep 600'")
		last := path[len(path)-1]
		if last == "rm" { // the example names port 8080
			out, err := e.shell(t, "atoll port forward -d demo 0:80")
			port := regexp.MustCompile(`127\.0\.0\.1:(\d+) `).FindStringSubmatch(out)
			if err != nil || port == nil {
				t.Fatal(out, err)
			}
			e.published = port[1]
		}
		if last != "token" && last != "url" { // those are with a key
			break
		}
		key, err := e.shell(t, "atoll key create")
		if err != nil {
			t.Fatal(key, err)
		}
		e.env = append(e.env, "ATOLL_KEY="+strings.TrimSpace(key))
	case path[0] == "profile" || path[0] == "secret" || path[0] == "template" || path[0] == "workspace":
		e.up(t)
		e.keep(t, path)
	case path[0] == "policy":
		e.must(t, `printf 'policies:\n  - {name: agents, tenants: [acme], cpus: 4}\ntests:\n  - {tenant: acme, cpus: 8, want: deny}\n' >policies.yaml`)
		e.env = append(e.env, "ATOLL_POLICY="+filepath.Join(e.dir, "policies.yaml"))
		e.up(t)
	case path[0] == "egress":
		e.up(t)
		e.must(t, "atoll run -d --name demo --egress '' -- sleep 600")
	case slices.Contains([]string{"pause", "resume", "stop", "start", "update", "fork", "snapshot"}, path[0]):
		e.up(t)
		e.must(t, "atoll run -d --name demo --egress '' -- sh -c 'echo started; sleep 600'")
		last := path[len(path)-1]
		if last == "start" {
			e.must(t, "atoll stop -t 1 demo")
		}
		if last == "rm" || last == "inspect" {
			e.must(t, "atoll snapshot create demo --name before")
		}
	case path[0] == "image":
		e.up(t)
		if path[len(path)-1] != "pull" {
			e.must(t, "atoll image pull --quiet "+reg+"/debian:12")
		}
		if err := writeRootfs(filepath.Join(e.dir, "rootfs.tar")); err != nil {
			t.Fatal(err)
		}
	default:
		e.must(t, "atoll run -d --name demo -- sh -c 'echo started; sleep 600'")
	}
}

// keep creates the resources for examples about a kind of resource.
func (e *exampleRunner) keep(t *testing.T, path []string) {
	last := path[len(path)-1]
	e.env = append(e.env, "GITHUB_TOKEN=one", "NEW_TOKEN=another", "VISUAL=", "EDITOR=sed -i s/allow/deny/")
	e.must(t, `printf '{"rules":[{"action":"allow","hosts":["api.example.com"]}]}' >profile.yaml; printf 'FROM host\nRUN true\n' >Dockerfile`)
	made := last == "create" || last == "build"
	if last == "learn" {
		e.must(t, "atoll run -d --name demo --egress api.example.com -- sleep 600 && atoll exec demo -- sh -c 'getent hosts other.example || true'")
	}
	switch {
	case made:
	case path[0] == "profile":
		e.must(t, "atoll profile create docs -f profile.yaml")
	case path[0] == "secret":
		e.must(t, "echo one | atoll secret create github")
	case path[0] == "template" && last != "template":
		e.must(t, "atoll template build -t tools . && atoll template tag tools tools:stable")
	case path[0] == "workspace" && last != "workspace":
		e.must(t, "atoll workspace create notes && atoll run --workspace notes -- sh -c 'date >>/workspace/log'")
	}
}

// up runs the daemon until the test ends.
func (e *exampleRunner) up(t *testing.T) {
	t.Helper()
	cmd := exec.Command(built.atoll, "up", "--listen", "127.0.0.1:0", "--plain")
	cmd.Env = e.env
	said, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the daemon ended badly: %v", err)
		}
	})
	lines := bufio.NewReader(said)
	for e.address == "" {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("%q %v", line, err)
		}
		e.address = regexp.MustCompile(`127\.0\.0\.1:\d+`).FindString(line)
	}
}

func (e *exampleRunner) shell(t *testing.T, line string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", line)
	cmd.Dir, cmd.Env, cmd.WaitDelay = e.dir, e.env, time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (e *exampleRunner) must(t *testing.T, line string) {
	t.Helper()
	if out, err := e.shell(t, line); err != nil {
		t.Errorf("%s\n%v\n%s", line, err, out)
	}
}

// try runs a line that may fail, but not with an internal error.
func (e *exampleRunner) try(t *testing.T, line string) {
	t.Helper()
	out, err := e.shell(t, line)
	if err != nil && (strings.Contains(out, "atoll: error") && !strings.Contains(out, "conformance") || strings.Contains(out, "panic")) {
		t.Errorf("%s\n%v\n%s", line, err, out)
	}
}

// link installs the program under its usual name.
func link(t *testing.T) string {
	t.Helper()
	file, err := linked()
	if err != nil {
		t.Fatal(err)
	}
	return file
}

var linked = sync.OnceValues(func() (string, error) {
	file := filepath.Join(built.dir, "atoll")
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	return file, copyFile(built.atoll, file)
})

// serveImage starts a registry with one image in it, that of the scripts.
func serveImage(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "layer.tar")
	if err := writeRootfs(file); err != nil {
		t.Fatal(err)
	}
	return serveLayer(t, file)
}

// serveLayer starts a registry with an image debian:12 of one layer.
func serveLayer(t *testing.T, file string) string {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")
	layer, err := tarball.LayerFromFile(file)
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.ParseReference(host + "/debian:12")
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img); err != nil {
		t.Fatal(err)
	}
	return host
}
