package main

import (
	"archive/zip"
	"bytes"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/internal/need"
)

// The servers that pages require. Each test has its own, at a loopback address
// that stands for the company's, and with the usual port.

// loopback returns an address that no other test uses.
func loopback(t *testing.T) string {
	t.Helper()
	need.Root(t, "the page's servers use ports below 1024")
	var b [3]byte
	_, _ = rand.Read(b[:])
	return fmt.Sprintf("127.%d.%d.%d", 16+b[0]/2, b[1], 2+b[2]/2)
}

// serveAt serves at an address until the test ends, with TLS or without.
func serveAt(t *testing.T, address string, handler http.Handler, tls bool) *httptest.Server {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(handler)
	_ = server.Listener.Close()
	server.Listener = listener
	if tls {
		server.StartTLS()
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	return server
}

// named makes the gateway resolve a name to an address.
func (g *guideRunner) named(t *testing.T, name, address string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(file, []byte(address+" "+name+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	g.env = append(g.env, "ATOLL_EGRESS_HOSTS="+file)
}

// serveMirror serves a mirror of PyPI that has one package.
func serveMirror(t *testing.T, g *guideRunner) {
	address := loopback(t)
	wheel := wheelOf(t, "greeting", "def hello():\n    return 'hello from the mirror'\n")
	const file = "greeting-1.0-py3-none-any.whl"
	mux := http.NewServeMux()
	mux.HandleFunc("GET /pypi/simple/greeting/", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintf(w, `<a href="../../files/%s">%s</a>`, file, file)
	})
	mux.HandleFunc("GET /pypi/files/"+file, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(wheel) })
	serveAt(t, address+":80", mux, false)
	g.named(t, "mirror.example.com", address)
	g.replace = append(g.replace, "10.1.2.0/24", address+"/32", "10.1.2.3", address)
}

// wheelOf returns a Python wheel with one module.
func wheelOf(t *testing.T, name, code string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	info := name + "-1.0.dist-info/"
	for file, text := range map[string]string{
		name + ".py":      code,
		info + "METADATA": "Metadata-Version: 2.1\nName: " + name + "\nVersion: 1.0\n",
		info + "WHEEL":    "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		info + "RECORD":   "",
	} {
		f, err := w.Create(file)
		if err == nil {
			_, err = f.Write([]byte(text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// serveGit serves a private repository over HTTPS that requires the token.
func serveGit(t *testing.T, g *guideRunner) {
	const token = "canary-of-a-token"
	address, dir := loopback(t), t.TempDir()
	script := `git init -q -b main work && cd work && echo '# Tools' >README.md && git add . &&
git -c user.name=Team -c user.email=team@example.com commit -qm 'first commit' && cd .. &&
git clone -q --bare work acme/tools.git && git -C acme/tools.git config http.receivepack true`
	cmd := exec.Command("sh", "-eu", "-c", script)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	execPath, err := exec.Command("git", "--exec-path").Output()
	if err != nil {
		t.Fatal(err)
	}
	backend := &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(execPath)), "git-http-backend"), Dir: dir,
		Env: []string{"GIT_PROJECT_ROOT=" + dir, "GIT_HTTP_EXPORT_ALL=1", "HOME=" + dir, "REMOTE_USER=agent"},
	}
	server := serveAt(t, address+":443", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, ok := r.BasicAuth(); !ok || password != token {
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		backend.ServeHTTP(w, r)
	}), true)
	// The certificate of httptest is for example.com.
	roots := filepath.Join(dir, "roots.pem")
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(roots, cert, 0o644); err != nil {
		t.Fatal(err)
	}
	g.named(t, "git.example.com", address)
	g.env = append(g.env, "ATOLL_EGRESS_ROOTS="+roots, "ATOLL_EGRESS_ALLOW="+address+"/32", "GIT_TOKEN="+token)
}

// useDebian serves an image debian:12 with a shell.
func useDebian(t *testing.T, g *guideRunner) {
	file := filepath.Join(t.TempDir(), "layer.tar")
	script := `printf 'ID=debian\n' >os-release && tar -chf "$1" --transform 's|^os-release|etc/os-release|;s|^/||' -P os-release \
/bin/sh $(ldd /bin/sh | grep -o '/[^ ]*')`
	cmd := exec.Command("sh", "-eu", "-c", script, "sh", file)
	cmd.Dir = t.TempDir()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	g.replace = append(g.replace, "debian:12", serveLayer(t, file)+"/debian:12")
}

// usePython installs the Python client for the page.
func usePython(t *testing.T, g *guideRunner) {
	need.Full(t, "it installs the Python client with pip")
	venv := filepath.Join(t.TempDir(), "venv")
	integrations, err := filepath.Abs("../../integrations")
	if err != nil {
		t.Fatal(err)
	}
	install := `python3 -m venv --without-pip "$1" && python3 -m pip --disable-pip-version-check --python "$1/bin/python" install -q "$2/python"`
	if out, err := exec.Command("sh", "-eu", "-c", install, "sh", venv, integrations).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	g.env = append(g.env, "PATH="+filepath.Dir(link(t))+":"+filepath.Join(venv, "bin")+":"+os.Getenv("PATH"))
}
