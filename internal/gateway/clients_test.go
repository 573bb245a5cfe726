package gateway_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha1"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/sandbox"
)

// TestClients runs the programs that agents use, through TLS that ends in the
// gateway, grouped by how they find trusted certificates.
func TestClients(t *testing.T) {
	w := newWorld(t)
	w.lead(w.good, "api.test", "git.test", "npm.test", "pypi.test", "apt.test", "ws.test")
	serveGit(t, w)
	serveNPM(t, w)
	servePyPI(w)
	serveApt(w)
	w.handle("ws.test", func(rw http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(rw, r, nil)
		if err != nil {
			return
		}
		defer c.CloseNow()
		_, text, err := c.Read(r.Context())
		if err == nil {
			_ = c.Write(r.Context(), websocket.MessageText, append([]byte("echo "), text...))
		}
		_ = c.Close(websocket.StatusNormalClosure, "")
	})
	all := []string{"/**"}
	r := w.rig()
	b := r.sandbox("clients", profile(
		sandbox.Rule{Action: sandbox.Allow, Hosts: []string{"api.test", "git.test", "npm.test", "pypi.test", "apt.test"}, Paths: all},
		sandbox.Rule{Action: sandbox.Allow, Hosts: []string{"ws.test"}, WebSocket: true},
	))
	b.put("/tmp/goclient", goClient(t))
	b.put("/tmp/Get.java", []byte(javaClient))
	for _, tt := range []struct{ name, needs, script, want string }{
		{"curl", "curl", "curl -sS https://api.test/x", `"URI":"/x"`},
		{"openssl", "openssl", "openssl s_client -connect api.test:443 -servername api.test -verify_return_error </dev/null 2>&1", "Verify return code: 0 (ok)"},
		{"Python, urllib", "python3", `python3 -c 'import urllib.request as u; print(u.urlopen("https://api.test/x").read())'`, `"URI":"/x"`},
		{"pip", "pip3", "cd /tmp && pip3 download --no-deps --index-url https://pypi.test/simple tiny 2>&1; ls /tmp/tiny*", "tiny-1.0-py3-none-any.whl"},
		{"Node", "node", `node -e 'require("https").get("https://api.test/x", r => r.pipe(process.stdout))'`, `"URI":"/x"`},
		{"npm", "npm", "mkdir -p /tmp/n && cd /tmp/n && npm install --no-audit --no-fund --registry https://npm.test tiny 2>&1; cat node_modules/tiny/package.json", `"version":"1.0.0"`},
		{"git, clone", "git", "cd /tmp && git clone https://git.test/repo.git 2>&1; cat repo/README", "a repository"},
		{"git, push", "git", "cd /tmp/repo && echo more >README && git -c user.name=a -c user.email=a@b.test commit -qam more && git push origin HEAD:next 2>&1; git ls-remote origin", "refs/heads/next"},
		{"apt", "apt-get", "mkdir -p /tmp/l/partial /etc/apt && echo 'deb [trusted=yes] https://apt.test/ ./' > /tmp/sources && apt-get -o Dir::Etc::sourcelist=/tmp/sources -o Dir::Etc::sourceparts=- -o Dir::State::lists=/tmp/l -o APT::Sandbox::User=root -o Debug::NoLocking=1 update 2>&1; ls /tmp/l", "apt.test"},
		{"Go", "sh", "/tmp/goclient https://api.test/x 2>&1", `"URI":"/x"`},
		{"WebSocket", "python3", websocketScript, "echo hello"},
		{"Java, HTTP/2", "java", "java /tmp/Get.java client 2 https://api.test/x 2>&1", `HTTP_2 {"Proto"`},
		{"Java, HTTP/1.1", "java", "java /tmp/Get.java client 1 https://api.test/x 2>&1", `HTTP_1_1 {"Proto"`},
		{"Java, URLConnection", "java", "java /tmp/Get.java connection - https://api.test/x 2>&1", `HttpsURLConnection {"Proto"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			need.Program(t, tt.needs)
			if out, _ := b.sh(tt.script); !strings.Contains(out, tt.want) {
				t.Errorf("got %.1500s, want %s", out, tt.want)
			}
		})
	}
}

// websocketScript speaks the protocol by hand, as a library would.
const websocketScript = `python3 - <<'EOF'
import ssl, socket, os
s = ssl.create_default_context().wrap_socket(socket.create_connection(("ws.test", 443)), server_hostname="ws.test")
s.sendall(b"GET / HTTP/1.1\r\nHost: ws.test\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n")
f = s.makefile("rb")
while f.readline().strip(): pass
mask, text = b"abcd", b"hello"
s.sendall(bytes([0x81, 0x80 | len(text)]) + mask + bytes(c ^ mask[i % 4] for i, c in enumerate(text)))
head = f.read(2)
print(f.read(head[1]).decode())
EOF`

// javaClient gets a page by either of the ways that Java has.
const javaClient = `import java.net.*;
import java.net.http.*;

class Get {
	public static void main(String[] args) throws Exception {
		URI uri = URI.create(args[2]);
		if (args[0].equals("connection")) {
			var c = (javax.net.ssl.HttpsURLConnection) uri.toURL().openConnection();
			System.out.println("HttpsURLConnection " + new String(c.getInputStream().readAllBytes()));
			return;
		}
		var version = args[1].equals("2") ? HttpClient.Version.HTTP_2 : HttpClient.Version.HTTP_1_1;
		var r = HttpClient.newBuilder().version(version).build().send(HttpRequest.newBuilder(uri).build(), HttpResponse.BodyHandlers.ofString());
		System.out.println(r.version() + " " + r.body());
	}
}
`

// serveGit serves a repository, as git itself does.
func serveGit(tb testing.TB, w *world) {
	tb.Helper()
	root := tb.TempDir()
	repo := exec.Command("sh", "-ec", `git init -q -b main work; cd work; echo a repository >README; git add .
git -c user.name=a -c user.email=a@b.test commit -qm first; git clone -q --bare . ../repo.git; git -C ../repo.git config http.receivepack true; git --exec-path`)
	repo.Dir = root
	out, err := repo.Output()
	if err != nil {
		tb.Fatalf("%v %s", err, out)
	}
	backend := &cgi.Handler{
		Path: filepath.Join(strings.TrimSpace(string(out)), "git-http-backend"), Env: []string{"GIT_PROJECT_ROOT=" + root, "GIT_HTTP_EXPORT_ALL=1"}, Stderr: io.Discard,
	}
	w.handle("git.test", backend.ServeHTTP)
}

// serveNPM serves a package.
func serveNPM(tb testing.TB, w *world) {
	var pack bytes.Buffer
	z := gzip.NewWriter(&pack)
	files := tar.NewWriter(z)
	manifest := `{"name":"tiny","version":"1.0.0"}`
	if err := files.WriteHeader(&tar.Header{Name: "package/package.json", Mode: 0o644, Size: int64(len(manifest))}); err != nil {
		tb.Fatal(err)
	}
	_, _ = io.WriteString(files, manifest)
	_ = files.Close()
	_ = z.Close()
	sum := sha1.Sum(pack.Bytes())
	w.handle("npm.test", func(rw http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, ".tgz") {
			_, _ = rw.Write(pack.Bytes())
			return
		}
		rw.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(rw, `{"name":"tiny","dist-tags":{"latest":"1.0.0"},"versions":{"1.0.0":{"name":"tiny","version":"1.0.0","dist":{"shasum":"%x","integrity":"sha1-%s","tarball":"https://npm.test/tiny/-/tiny-1.0.0.tgz"}}}}`,
			sum, base64.StdEncoding.EncodeToString(sum[:]))
	})
}

// servePyPI serves a package index.
func servePyPI(w *world) {
	wheel := emptyZip()
	w.handle("pypi.test", func(rw http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, ".whl") {
			_, _ = rw.Write(wheel)
			return
		}
		rw.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(rw, `<!DOCTYPE html><html><body><a href="https://pypi.test/files/tiny-1.0-py3-none-any.whl">tiny-1.0-py3-none-any.whl</a></body></html>`)
	})
}

// serveApt serves an archive without packages.
func serveApt(w *world) {
	w.handle("apt.test", func(rw http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/Packages") {
			_, _ = io.WriteString(rw, "\n")
			return
		}
		http.NotFound(rw, r)
	})
}

// emptyZip is enough of a wheel for a client that only downloads it.
func emptyZip() []byte {
	var out bytes.Buffer
	z := zip.NewWriter(&out)
	for name, text := range map[string]string{
		"tiny.py":                     "",
		"tiny-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
		"tiny-1.0.dist-info/WHEEL":    "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		"tiny-1.0.dist-info/RECORD":   "",
	} {
		f, _ := z.Create(name)
		_, _ = io.WriteString(f, text)
	}
	_ = z.Close()
	return out.Bytes()
}

// goClient builds a program that gets a page, as Go programs do.
func goClient(tb testing.TB) []byte {
	tb.Helper()
	source := `package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
)

func main() {
	r, err := http.Get(os.Args[1])
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	io.Copy(os.Stdout, r.Body)
}
`
	program, err := os.ReadFile(buildClient(tb, source))
	if err != nil {
		tb.Fatal(err)
	}
	return program
}

// put writes a program into a sandbox.
func (s *rigSandbox) put(path string, content []byte) {
	s.r.tb.Helper()
	files, ok := driver.As[driver.FileSystem](s.in)
	if !ok {
		s.r.tb.Fatal("there is no file system")
	}
	if _, err := files.Write(s.r.tb.Context(), path, bytes.NewReader(content), driver.WriteOptions{Mode: 0o755}); err != nil {
		s.r.tb.Fatal(err)
	}
}
