//go:build docker

package docker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/moby/moby/client"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/docker"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
)

func opened(dir string) (driver.Provider, error) { return docker.New(options(dir)) }

func TestSession(t *testing.T) {
	t.Setenv("ATOLL_BIN", bin) // kernels run from it
	hostedtest.Session(t, docker.Name, opened)
}

func TestSaved(t *testing.T) {
	t.Setenv("ATOLL_BIN", bin)
	hostedtest.Saved(t, docker.Name, opened)
}

func TestContext(t *testing.T) {
	t.Setenv("ATOLL_BIN", bin)
	hostedtest.Context(t, docker.Name, opened)
}

func TestSessionMovesWhileAClientWrites(t *testing.T) {
	t.Setenv("ATOLL_BIN", bin)
	hostedtest.Writer(t, docker.Name, opened)
}

func TestHandover(t *testing.T) {
	t.Setenv("ATOLL_BIN", bin)
	other := filepath.Join(t.TempDir(), "other")
	h := hostedtest.Handover{
		Name: docker.Name, Records: true, Open: opened,
		Other: func(dir string) (driver.Provider, error) {
			opts := options(dir)
			opts.Host = otherDaemon(t, other)
			return docker.New(opts)
		},
		Count: func() int {
			all, err := api.ContainerList(t.Context(), client.ContainerListOptions{All: true})
			if err != nil {
				t.Error(err)
			}
			return len(all.Items)
		},
	}
	h.Run(t)
}

// otherDaemon proxies the daemon with a different ID.
func otherDaemon(t *testing.T, socket string) string {
	t.Helper()
	target := &url.URL{Scheme: "http", Host: "docker"}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", strings.TrimPrefix(host, "unix://"))
		}},
		ModifyResponse: func(r *http.Response) error {
			if !strings.HasSuffix(r.Request.URL.Path, "/info") {
				return nil
			}
			var info map[string]any
			if err := json.NewDecoder(r.Body).Decode(&info); err != nil {
				return err
			}
			info["ID"] = "another one"
			text, err := json.Marshal(info)
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
			r.Header.Set("Content-Length", strconv.Itoa(len(text)))
			return err
		},
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: proxy}}
	server.Start()
	t.Cleanup(server.Close)
	return "unix://" + socket
}
