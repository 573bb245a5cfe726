package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/sandbox"
)

// TestLikeLinux runs small programs on this machine's kernel and in a sandbox.
// Both must print the same. Where gVisor is known to differ, NAME.gvisor has what
// it prints, and docs/reference/gvisor.md explains it under that name.
// ATOLL_UPDATE=1 writes these files.
func TestLikeLinux(t *testing.T) {
	python := need.Program(t, "python3")
	s := newSoaker(t)
	b := s.sandbox(t, "box")
	page, err := os.ReadFile("../../docs/reference/gvisor.md")
	if err != nil {
		t.Fatal(err)
	}
	programs, err := filepath.Glob("testdata/linux/*.py")
	if err != nil || len(programs) < 10 {
		t.Fatalf("%q, %v", programs, err)
	}
	for _, file := range programs {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.WriteFile(t.Context(), "/tmp/linux/"+filepath.Base(file), text); err != nil {
			t.Fatal(err)
		}
	}
	for _, file := range programs {
		name := strings.TrimSuffix(filepath.Base(file), ".py")
		if name == "lib" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, python, "-u", "-B", file)
			cmd.WaitDelay = time.Second
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("on this machine: %v\n%s", err, out)
			}
			res, err := b.Run(ctx, sandbox.Command{Args: []string{"sh", "-c", "exec python3 -u -B /tmp/linux/" + name + ".py 2>&1"}}, atoll.RunOptions{})
			if err != nil {
				t.Fatal(err)
			}
			want, linux := string(out), string(out)
			file := "testdata/linux/" + name + ".gvisor"
			if os.Getenv("ATOLL_UPDATE") != "" {
				if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
					t.Fatal(err)
				}
				if string(res.Stdout) != linux {
					err = os.WriteFile(file, res.Stdout, 0o644)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			known, err := os.ReadFile(file)
			switch {
			case err == nil:
				want = string(known)
				if want == linux {
					t.Errorf("%s.gvisor is what Linux prints: remove it", name)
				}
				if !strings.Contains(string(page), "`"+name+"`") {
					t.Errorf("docs/reference/gvisor.md does not explain `%s`", name)
				}
			case !errors.Is(err, fs.ErrNotExist):
				t.Fatal(err)
			}
			if got := string(res.Stdout); got != want {
				t.Errorf("inside, %v:\n%s\nwant:\n%s\nLinux:\n%s", res.Exit, got, want, linux)
			}
		})
	}
}
