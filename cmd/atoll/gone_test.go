package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/sandbox"
)

// orphaned is a command that says in a file that it was hung up, and its child.
func orphaned(file string) string {
	return fmt.Sprintf("trap 'echo x >%[1]s.hup; exit' HUP; sleep 1000 & echo $! >%[1]s.child; echo x >%[1]s.up; wait", file)
}

// TestCallerGone checks the rule for commands whose caller is gone, with every
// kind of caller: a foreground command is hung up, and nothing of it is left.
func TestCallerGone(t *testing.T) {
	need.Full(t, "it waits for the 30 s that a command of the command line is kept")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	s := soakerOf(t, built.atoll, t.TempDir()+"/state", "--bridge="+address)
	b := s.box(t, "box")
	key, err := s.client.Admin().CreateKey(t.Context(), sandbox.NewKey{Verbs: []string{"read", "exec", "write"}})
	if err != nil {
		t.Fatal(err)
	}
	bridged := bridgeBox(t, s, address, key.Token)
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
		name string
		box  *atoll.Sandbox
		// run runs the command until ctx ends, and then leaves without a word.
		run func(t *testing.T, ctx context.Context)
	}{
		{"exec", b, killed("exec", "box", "--", "sh", "-c", orphaned("/tmp/exec"))},
		{"exec-i", b, killed("exec", "-i", "box", "--", "sh", "-c", orphaned("/tmp/exec-i"))},
		{"library", b, func(t *testing.T, ctx context.Context) {
			p, err := b.Exec(ctx, sandbox.Command{Shell: orphaned("/tmp/library")})
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
			awaitInside(t, tt.box, "[ -e "+file+".up ]")
			cancel()
			<-done
			awaitInside(t, tt.box, "[ -e "+file+".hup ]")
			awaitInside(t, tt.box, "! kill -0 $(cat "+file+".child)")
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

// bridgeBox makes a sandbox through the API of the bridge.
func bridgeBox(t *testing.T, s *soaker, address, key string) *atoll.Sandbox {
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
