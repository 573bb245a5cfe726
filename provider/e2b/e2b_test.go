package e2b_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/driver/drivertest"
	"github.com/atoll-run/atoll/internal/scratch"
	"github.com/atoll-run/atoll/provider/e2b"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/sandbox"
)

// TestMain builds the program that daemons and guests run from. The test binary
// cannot be used, because with the race detector it is not static.
func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	if os.Getenv("ATOLL_BIN") != "" {
		return m.Run()
	}
	dir, remove, err := scratch.Dir("atoll-e2b-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = remove() }()
	bin := filepath.Join(dir, "atoll")
	build := exec.Command("go", "build", "-buildvcs=false", "-o", bin, "../../cmd/atoll")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building the daemon: %v\n%s", err, out)
		return 1
	}
	os.Setenv("ATOLL_BIN", bin)
	return m.Run()
}

// service is an Atoll daemon that serves E2B clients.
type service struct {
	bin, state string
	env        map[string]string // that point clients to it
}

// serve starts a daemon that ends with the test.
func serve(t *testing.T) *service {
	t.Helper()
	s := &service{bin: os.Getenv("ATOLL_BIN"), state: t.TempDir(), env: map[string]string{}}
	daemon := exec.Command(s.bin, "up", "--e2b=127.0.0.1:0", "--e2b-domain=")
	daemon.Env = append(os.Environ(), "ATOLL_STATE_DIR="+s.state)
	stderr, err := daemon.StderrPipe()
	if err == nil {
		err = daemon.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	log, rest := bufio.NewReader(stderr), make(chan []byte, 1)
	t.Cleanup(func() {
		_ = daemon.Process.Signal(syscall.SIGTERM)
		said := <-rest
		if err := daemon.Wait(); err != nil {
			t.Errorf("the daemon: %v\n%s", err, said)
		}
	})
	ready := regexp.MustCompile(`serving clients of E2B`)
	for line := ""; !ready.MatchString(line); {
		if line, err = log.ReadString('\n'); err != nil {
			rest <- nil
			t.Fatalf("the daemon did not start: %v %s", err, line)
		}
	}
	go func() {
		said, _ := io.ReadAll(log)
		rest <- said
	}()
	out, err := s.command("e2b", "env").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		name, value, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
		s.env[name] = strings.Trim(value, `'"`)
	}
	return s
}

func (s *service) command(args ...string) *exec.Cmd {
	cmd := exec.Command(s.bin, args...)
	cmd.Env = append(os.Environ(), "ATOLL_STATE_DIR="+s.state)
	return cmd
}

// options returns the options of a provider that uses the service. Its idle
// connections are closed early, so that they do not count as leaks.
func (s *service) options(dir string) e2b.Options {
	opts := e2b.FromEnvironment(dir, func(name string) string { return s.env[name] })
	opts.Executable = s.bin
	opts.Transport = &http.Transport{IdleConnTimeout: 200 * time.Millisecond, MaxIdleConnsPerHost: 16}
	return opts
}

func TestConformance(t *testing.T) {
	s, dir := serve(t), t.TempDir()
	drivertest.Run(t, drivertest.Harness{
		New:  func(context.Context) (driver.Provider, error) { return e2b.New(s.options(dir)) },
		Spec: func() sandbox.Spec { return sandbox.Spec{Image: "host"} },

		Parallel: true, Patience: 5 * time.Minute,
	})
}

func TestCheck(t *testing.T) {
	s := serve(t)
	var env []string
	for name, value := range s.env {
		env = append(env, name+"="+value)
	}
	lacks := []string{"images", "mounts", "network", "pause", "previews", "resize"}
	hostedtest.Check(t, e2b.Name, s.env["E2B_API_KEY"], lacks, env...)
	if out, err := s.command("ls", "-q").Output(); err != nil || len(out) > 0 {
		t.Errorf("atoll ls: %v; there are: %s", err, out)
	}
}
