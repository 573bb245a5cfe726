// Command execd stands in for the daemon of that name, whose image is in a
// registry that tests cannot reach. It has that daemon's API as the fake has it.
// With the argument egress, it stands in for the sidecar that filters a sandbox's
// network: it reports its configuration. Its container has no route to anywhere.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/atoll-run/atoll/internal/testing/servicetest"
	"github.com/atoll-run/atoll/internal/testing/servicetest/opensandbox"
)

// container is the container that the program runs in.
type container struct{}

// writer calls a function with what is written.
type writer func([]byte) error

func (f writer) Write(data []byte) (int, error) { return len(data), f(data) }

func (container) Run(ctx context.Context, argv []string, dir string, env map[string]string, stdout, stderr func([]byte) error) (int, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = dir, os.Environ(), writer(stdout), writer(stderr)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	for k, v := range env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), nil
	}
	return 0, err
}

func (container) Write(_ context.Context, path string, content io.Reader) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Close())
}

func (container) Read(_ context.Context, path string) (io.ReadCloser, error) { return os.Open(path) }

// forward forwards /proxy/PORT to what listens in the sandbox, as the daemon does.
func forward(to http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", to)
	// A reverse proxy to itself may cut the answer to a request whose body it is
	// still checking for more.
	mux.Handle("/proxy/44772/", http.StripPrefix("/proxy/44772", to))
	mux.HandleFunc("/proxy/{port}/", func(w http.ResponseWriter, r *http.Request) {
		at := &url.URL{Scheme: "http", Host: "127.0.0.1:" + r.PathValue("port")}
		proxy := &httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(at) }, FlushInterval: -1}
		http.StripPrefix("/proxy/"+r.PathValue("port"), proxy).ServeHTTP(w, r)
	})
	return mux
}

// sidecar says what the sandbox may reach.
func sidecar() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /policy", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Opensandbox-Egress-Auth") != os.Getenv("OPENSANDBOX_EGRESS_TOKEN") {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		servicetest.Answer(w, http.StatusOK, map[string]any{
			"status": "ok", "enforcementMode": os.Getenv("OPENSANDBOX_EGRESS_MODE"), "policy": json.RawMessage(os.Getenv("OPENSANDBOX_EGRESS_RULES")),
		})
	})
	return mux
}

func main() {
	port, serve := ":44772", forward(opensandbox.NewExecd(container{}))
	if len(os.Args) > 1 && os.Args[1] == "egress" {
		port, serve = ":18080", sidecar()
	}
	err := http.ListenAndServe(port, serve)
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
