package atolld_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

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

// A server shares images where it is told, and removes from its blobs what nobody used
// for long.
func TestServerSharesImages(t *testing.T) {
	blobs := t.TempDir()
	put := func(name string, age time.Duration) string {
		path := filepath.Join(blobs, "images", "blobs", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, nil, 0o600), os.Chtimes(path, time.Time{}, time.Now().Add(-age))); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const day = 24 * time.Hour
	old, young := put("old", 31*day), put("young", 29*day)
	s := &atolld.Server{StateDir: t.TempDir(), Provider: "host", Blobs: blobs, ShareImagesKeep: 30 * day}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(old); err != nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("an old part of an image is still there")
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(young); err != nil {
		t.Errorf("a younger part: %v", err)
	}
	s = &atolld.Server{StateDir: t.TempDir(), Provider: "host", ShareImages: "s3://me:secret@bucket"}
	if err := s.Start(t.Context()); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("an address with a secret: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
