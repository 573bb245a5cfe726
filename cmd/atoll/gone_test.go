package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/envd"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// orphaned is a command that says in a file that it was hung up, and its child.
func orphaned(file string) string {
	return fmt.Sprintf("trap 'echo x >%[1]s.hup; exit' HUP; sleep 1000 & echo $! >%[1]s.child; echo x >%[1]s.up; wait", file)
}

// TestCallerGone checks the rule for commands whose caller is gone, with every
// kind of caller: a foreground command is hung up, and nothing of it is left.
func TestCallerGone(t *testing.T) {
	need.Full(t, "it waits for the 30 s that a command of the command line is kept")
	address, e2b := freeAddress(t), freeAddress(t)
	s := soakerOf(t, built.atoll, t.TempDir()+"/state", "--bridge="+address, "--e2b="+e2b)
	b := s.sandbox(t, "box")
	key, err := s.client.Admin().CreateKey(t.Context(), operator.NewKey{Verbs: []string{"read", "exec", "write"}})
	if err != nil {
		t.Fatal(err)
	}
	bridged := bridgeSandbox(t, s, address, key.Token)
	served := (&mcpHost{env: s.env}).serve(t)
	killed := func(args ...string) func(*testing.T, context.Context) {
		return func(t *testing.T, ctx context.Context) {
			cmd := exec.Command(s.bin, args...)
			cmd.Env = s.env
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			<-ctx.Done()
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	for _, tt := range []struct {
		name    string
		sandbox *atoll.Sandbox
		// run runs the command until ctx ends, and then leaves without a word.
		run func(t *testing.T, ctx context.Context)
	}{
		{"exec", b, killed("exec", "box", "--", "sh", "-c", orphaned("/tmp/exec"))},
		{"exec-i", b, killed("exec", "-i", "box", "--", "sh", "-c", orphaned("/tmp/exec-i"))},
		{"library", b, func(t *testing.T, ctx context.Context) {
			p, err := b.Exec(t.Context(), sandbox.Command{Shell: orphaned("/tmp/library")}) // ctx may end before it returns
			if err != nil {
				t.Error(err)
				return
			}
			<-ctx.Done()
			if err := p.Detach(); err != nil {
				t.Error(err)
			}
		}},
		{"one-call", b, func(t *testing.T, ctx context.Context) {
			if _, err := b.Run(ctx, sandbox.Command{Shell: orphaned("/tmp/one-call")}, atoll.RunOptions{}); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}},
		{"bridge", bridged, func(t *testing.T, ctx context.Context) {
			body, _ := json.Marshal(map[string]any{"argv": []string{"sh", "-c", orphaned("/tmp/bridge")}})
			resp, err := bridgeCall(ctx, address, key.Token, "/v1/sandbox/"+bridged.Info().Labels["bridge.id"]+"/exec", body)
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}},
		{"mcp", b, func(t *testing.T, ctx context.Context) {
			cmd := exec.Command(s.bin, "mcp")
			cmd.Env = s.env
			client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
			session, err := client.Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, nil)
			if err != nil {
				t.Error(err)
				return
			}
			go func() {
				<-ctx.Done()
				_ = cmd.Process.Kill()
			}()
			_, _ = session.CallTool(t.Context(), &mcp.CallToolParams{Name: "sandbox_exec", Arguments: args{"sandbox": "box", "command": orphaned("/tmp/mcp")}})
			_ = session.Close()
		}},
		{"mcp-http", b, func(t *testing.T, ctx context.Context) {
			var wires conns
			client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
			session, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{
				Endpoint: served, MaxRetries: -1, HTTPClient: &http.Client{Transport: bearer{key.Token, &http.Transport{DialContext: wires.dial}}},
			}, nil)
			if err != nil {
				t.Error(err)
				return
			}
			go func() {
				<-ctx.Done()
				wires.cut()
			}()
			_, _ = session.CallTool(t.Context(), &mcp.CallToolParams{Name: "sandbox_exec", Arguments: args{"sandbox": "box", "command": orphaned("/tmp/mcp-http")}})
			_ = session.Close()
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				tt.run(t, ctx)
			}()
			file := "/tmp/" + tt.name
			awaitInside(t, tt.sandbox, "[ -e "+file+".up ]")
			cancel()
			<-done
			awaitInside(t, tt.sandbox, "[ -e "+file+".hup ]")
			awaitInside(t, tt.sandbox, "! kill -0 $(cat "+file+".child)")
		})
	}
	t.Run("exec -d", func(t *testing.T) {
		t.Parallel()
		run := exec.Command(s.bin, "exec", "-d", "box", "--", "sh", "-c", orphaned("/tmp/background"))
		run.Env = s.env
		if out, err := run.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		awaitInside(t, b, "[ -e /tmp/background.up ]")
		awaitInside(t, b, "[ -e /tmp/exec.hup ]") // which takes as long as anybody waits
		awaitInside(t, b, "kill -0 $(cat /tmp/background.child) && [ ! -e /tmp/background.hup ]")
	})
	// As with E2B, the command of a caller who is gone goes on.
	t.Run("e2b", func(t *testing.T) {
		t.Parallel()
		made, err := e2bCall(t.Context(), "http://"+e2b+"/v2/sandboxes", []byte(`{"templateID":"base"}`), "X-API-Key", envd.Key(key.Token))
		if err != nil {
			t.Fatal(err)
		}
		var sb struct{ SandboxID, EnvdAccessToken string }
		err = json.NewDecoder(made.Body).Decode(&sb)
		_ = made.Body.Close()
		if err != nil || sb.SandboxID == "" {
			t.Fatalf("status %d, %v", made.StatusCode, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		start, _ := json.Marshal(map[string]any{"process": map[string]any{"cmd": "sh", "args": []string{"-c", orphaned("/tmp/e2b")}}, "stdin": false})
		running, err := e2bCall(ctx, "http://"+e2b+"/process.Process/Start", append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(start))), start...),
			"E2b-Sandbox-Id", sb.SandboxID, "E2b-Sandbox-Port", "49983", "X-Access-Token", sb.EnvdAccessToken,
			"Content-Type", "application/connect+json", "Connect-Protocol-Version", "1")
		if err != nil || running.StatusCode != http.StatusOK {
			t.Fatalf("%v %v", running, err)
		}
		defer running.Body.Close()
		of, err := s.client.Get(t.Context(), "sb-"+strings.TrimPrefix(sb.SandboxID, "sb"))
		if err != nil {
			t.Fatal(err)
		}
		awaitInside(t, of, "[ -e /tmp/e2b.up ]")
		cancel()
		awaitInside(t, b, "[ -e /tmp/exec.hup ]") // which takes as long as anybody waits
		awaitInside(t, of, "kill -0 $(cat /tmp/e2b.child) && [ ! -e /tmp/e2b.hup ]")
	})
}

// freeAddress returns a loopback address that was free a moment ago.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// conns are connections that can be cut together.
type conns struct {
	mu   sync.Mutex
	all  []net.Conn
	over bool
}

func (c *conns) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil && c.over {
		err = errors.Join(net.ErrClosed, conn.Close())
	}
	c.all = append(c.all, conn)
	return conn, err
}

// cut closes the connections, and those that are made later.
func (c *conns) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	for _, conn := range c.all {
		if conn != nil {
			_ = conn.Close()
		}
	}
}

func e2bCall(ctx context.Context, url string, body []byte, headers ...string) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	return http.DefaultClient.Do(r)
}

// awaitInside waits until a script succeeds in a sandbox.
func awaitInside(t *testing.T, b *atoll.Sandbox, script string) {
	t.Helper()
	script = "i=0; until " + script + "; do i=$((i+1)); [ $i -lt 900 ] || exit 1; sleep 0.1; done 2>/dev/null"
	res, err := b.Run(t.Context(), sandbox.Command{Shell: script}, atoll.RunOptions{})
	if err != nil || res.Exit.Code != 0 {
		t.Fatalf("%s: %+v %v", script, res, err)
	}
}

// bridgeSandbox makes a sandbox through the API of the bridge.
func bridgeSandbox(t *testing.T, s *soaker, address, key string) *atoll.Sandbox {
	t.Helper()
	resp, err := bridgeCall(t.Context(), address, key, "/v1/sandbox", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var made struct{ ID string }
	if err := json.NewDecoder(resp.Body).Decode(&made); err != nil || made.ID == "" {
		t.Fatalf("status %d, %+v, %v", resp.StatusCode, made, err)
	}
	resp, err = bridgeCall(t.Context(), address, key, "/v1/sandbox/"+made.ID+"/exec", []byte(`{"argv": ["true"]}`))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	for found, err := range s.client.List(t.Context()) {
		if err == nil && found.Labels["bridge.id"] == made.ID {
			b, err := s.client.Get(t.Context(), string(found.ID))
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
	}
	t.Fatalf("no sandbox has the label of the bridge's %s", made.ID)
	return nil
}

func bridgeCall(ctx context.Context, address, key, path string, body []byte) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+key)
	return http.DefaultClient.Do(r)
}
