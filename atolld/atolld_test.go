package atolld_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/atolld"
	_ "github.com/atoll-run/atoll/internal/guest/early" // the test binary is the guest, too
	"github.com/atoll-run/atoll/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestServer(t *testing.T) {
	s := &atolld.Server{StateDir: t.TempDir(), Provider: "host", Socket: true}
	if _, err := s.Client(); err == nil {
		t.Error("a client of nothing")
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err == nil {
		t.Error("started twice")
	}
	second := &atolld.Server{StateDir: s.StateDir, Provider: "host"}
	if err := second.Start(t.Context()); sandbox.CodeOf(err) != sandbox.CodeConflict {
		t.Errorf("got %v", err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
	inside, err := s.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	sb, err := inside.Create(t.Context(), sandbox.Spec{Name: "one"}, atoll.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// Other programs of this user see the same sandboxes over the socket.
	outside, err := atoll.New(atoll.Options{Host: "unix://" + s.StateDir + "/" + atoll.SocketName})
	if err != nil {
		t.Fatal(err)
	}
	defer outside.Close()
	if same, err := outside.Get(t.Context(), "one"); err != nil || same.ID() != sb.ID() {
		t.Errorf("%v %v", same.ID(), err)
	}
	if err := sb.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := inside.Ping(context.Background()); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("got %v", err)
	}
}

// A program with an embedded daemon. The provider host makes the example fast,
// but it does not isolate. The zero value of Server uses a provider that does.
func Example() {
	dir, err := os.MkdirTemp("", "atolld-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	server := &atolld.Server{StateDir: dir, Provider: "host"}
	if err := server.Start(ctx); err != nil {
		panic(err)
	}
	defer server.Close()
	client, err := server.Client()
	if err != nil {
		panic(err)
	}
	defer client.Close()
	sb, err := client.Create(ctx, sandbox.Spec{})
	if err != nil {
		panic(err)
	}
	defer sb.Destroy(ctx)
	res, err := sb.Run(ctx, sandbox.Command{Shell: "echo hello from a sandbox; exit 3"}, atoll.RunOptions{})
	if err != nil {
		panic(err)
	}
	fmt.Printf("%s%d\n", res.Stdout, res.Exit.Code)
	// Output:
	// hello from a sandbox
	// 3
}

// A command whose input and output are streams.
func Example_streams() {
	dir, err := os.MkdirTemp("", "atolld-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	server := &atolld.Server{StateDir: dir, Provider: "host"}
	if err := server.Start(ctx); err != nil {
		panic(err)
	}
	defer server.Close()
	client, err := server.Client()
	if err != nil {
		panic(err)
	}
	defer client.Close()
	sb, err := client.Create(ctx, sandbox.Spec{Name: "demo"}, atoll.CreateOptions{})
	if err != nil {
		panic(err)
	}
	defer sb.Destroy(ctx)
	p, err := sb.Exec(ctx, sandbox.Command{Args: []string{"cat"}, Stdin: true})
	if err != nil {
		panic(err)
	}
	defer p.Close()
	go func() {
		_, _ = io.WriteString(p.Stdin(), "there and back\n")
		_ = p.Stdin().Close()
	}()
	out, _ := io.ReadAll(p.Stdout())
	exit, err := p.Wait(ctx)
	fmt.Printf("%s%d %v\n", out, exit.Code, err)
	// Output:
	// there and back
	// 0 <nil>
}
