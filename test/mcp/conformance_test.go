//go:build mcp

package mcp

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// TestConformance runs all scenarios of two revisions. Those listed in
// expected-REVISION.yaml fail, because they use tools and prompts of the
// runner's example server, or parts of the protocol that Atoll does not
// implement. The runner also fails when one of them passes.
func TestConformance(t *testing.T) {
	runner, node := install(t)
	target := start(t)
	for _, revision := range []string{"2025-11-25", "2026-07-28"} {
		t.Run(revision, func(t *testing.T) {
			expected, err := filepath.Abs("expected-" + revision + ".yaml")
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(node, runner, "server", "--url", target, "--suite", "all", "--spec-version", revision, "--expected-failures", expected, "--timeout", "120000")
			cmd.Dir = t.TempDir()
			out, err := cmd.CombinedOutput()
			if text := string(out); err != nil || !strings.Contains(text, "Baseline check passed") {
				t.Errorf("%v\n%s", err, text)
			}
		})
	}
}

// start starts a daemon and atoll mcp, and returns the address of a proxy that
// adds the key to requests, which the runner cannot do.
func start(t *testing.T) string {
	t.Helper()
	bin := os.Getenv("ATOLL_BIN")
	if bin == "" {
		t.Fatal("ATOLL_BIN is not set; run make mcp")
	}
	env := append(os.Environ(), "ATOLL_STATE_DIR="+t.TempDir(), "ATOLL_HOST=", "ATOLL_KEY=", "ATOLL_NO_DAEMON=")
	atoll := func(args ...string) string {
		cmd := exec.Command(bin, args...)
		cmd.Env = env
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("atoll %s: %v", strings.Join(args, " "), err)
		}
		return strings.TrimSpace(string(out))
	}
	atoll("up", "--detach", "--pool=0")
	t.Cleanup(func() { atoll("down") })
	key := atoll("key", "create")
	cmd := exec.Command(bin, "mcp", "--listen", "127.0.0.1:0", "--plain")
	cmd.Env = env
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("atoll mcp: %v", err)
		}
	})
	line, err := bufio.NewReader(stderr).ReadString('\n')
	m := regexp.MustCompile(`serving MCP on (\S+)`).FindStringSubmatch(line)
	if m == nil {
		t.Fatalf("atoll mcp said %q: %v", line, err)
	}
	proxy := httptest.NewServer(&httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(&url.URL{Scheme: "http", Host: m[1]})
		r.Out.Host = r.In.Host
		r.Out.Header.Set("Authorization", "Bearer "+key)
	}})
	t.Cleanup(proxy.Close)
	if resp, err := http.Get("http://" + m[1]); err != nil || resp.StatusCode != http.StatusUnauthorized {
		t.Fatalf("without a key the server answered %v, %v", resp, err)
	}
	return proxy.URL
}

// install installs the packages of package-lock.json into a cache, and returns
// the runner and a Node.js that can run it.
func install(t *testing.T) (runner, node string) {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.New()
	files := map[string][]byte{}
	for _, name := range []string{"package.json", "package-lock.json"} {
		if files[name], err = os.ReadFile(name); err != nil {
			t.Fatal(err)
		}
		sum.Write(files[name])
	}
	dir := filepath.Join(cache, "atoll-test", "mcp-"+hex.EncodeToString(sum.Sum(nil)[:6]))
	arch := map[string]string{"amd64": "x64"}[runtime.GOARCH]
	if arch == "" {
		arch = runtime.GOARCH
	}
	runner = filepath.Join(dir, "node_modules/@modelcontextprotocol/conformance/dist/index.js")
	node = filepath.Join(dir, "node_modules/node-linux-"+arch, "bin/node")
	if _, err := os.Stat(filepath.Join(dir, ".complete")); err == nil {
		return runner, node
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	npm := exec.Command("npm", "ci", "--ignore-scripts", "--no-fund", "--no-audit")
	npm.Dir = dir
	if out, err := npm.CombinedOutput(); err != nil {
		t.Fatalf("npm ci: %v\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(dir, ".complete"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return runner, node
}
