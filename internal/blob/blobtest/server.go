package blobtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// gateway is a real S3 server that stores a bucket in a directory. It is built
// from the module proxy on first use and kept in the user's cache, unless
// $ATOLL_S3_SERVER names one.
const gateway = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"

// The server's credentials. It listens on the loopback address only.
const (
	accessKey = "atoll-test"
	secretKey = "not-much-of-a-secret"
)

// Main runs the tests of a package that uses [S3], and then stops the server.
// It returns the exit code. Call it from TestMain.
func Main(m *testing.M) int {
	code := m.Run()
	server.stop()
	return code
}

// S3 creates an empty bucket and returns its address for blob.Open. It sets the
// credentials in the test's environment.
func S3(t *testing.T) string {
	t.Helper()
	server.once.Do(func() { server.err = server.start() })
	if server.err != nil {
		t.Fatal(server.err)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", accessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", secretKey)
	name := fmt.Sprintf("bucket-%d", buckets.Add(1))
	if err := os.Mkdir(filepath.Join(server.dir, "data", name), 0o755); err != nil {
		t.Fatal(err)
	}
	return "s3://" + name + "?region=us-east-1&endpoint=http://" + server.address
}

var (
	server  s3
	buckets atomic.Int32
)

type s3 struct {
	once    sync.Once
	err     error
	dir     string
	address string
	cmd     *exec.Cmd
	log     bytes.Buffer
}

func (s *s3) start() (err error) {
	if s.dir, err = os.MkdirTemp("", "atoll-s3-"); err != nil {
		return err
	}
	if err := os.Mkdir(filepath.Join(s.dir, "data"), 0o755); err != nil {
		return err
	}
	binary := os.Getenv("ATOLL_S3_SERVER")
	if binary == "" {
		if binary, err = install(s.dir); err != nil {
			return err
		}
	}
	for range 5 { // another process may take the port first
		if err = s.serve(binary); err == nil {
			return nil
		}
	}
	return err
}

// install builds the server on first use and returns its path. dir is not in a
// module.
func install(dir string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	cache = filepath.Join(cache, "atoll-test", gateway[strings.LastIndex(gateway, "/")+1:])
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	lock, err := os.Create(filepath.Join(cache, "lock")) // the tests of several packages may run at once
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	binary := filepath.Join(cache, "versitygw")
	if _, err := os.Stat(binary); err == nil {
		return binary, nil
	}
	build := exec.CommandContext(context.Background(), "go", "install", gateway)
	build.Dir = dir
	build.Env = append(os.Environ(), "GOBIN="+dir, "CGO_ENABLED=0", "GOFLAGS=-mod=mod -ldflags=-s")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the S3 server: %w\n%s", err, out)
	}
	data, err := os.ReadFile(filepath.Join(dir, "versitygw"))
	if err == nil {
		err = os.WriteFile(binary+".new", data, 0o755)
	}
	if err == nil {
		err = os.Rename(binary+".new", binary) // atomically
	}
	return binary, err
}

// serve starts the server and waits until it responds.
func (s *s3) serve(binary string) error {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.address = free.Addr().String()
	_ = free.Close() // only used to find a free port
	s.log.Reset()
	s.cmd = exec.CommandContext(context.Background(), binary, "--port", s.address, "--quiet", "posix", filepath.Join(s.dir, "data"))
	s.cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+accessKey, "ROOT_SECRET_KEY="+secretKey)
	s.cmd.Stdout, s.cmd.Stderr = &s.log, &s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- s.cmd.Wait() }()
	client := http.Client{Timeout: time.Second}
	for {
		if answer, err := client.Get("http://" + s.address); err == nil {
			_ = answer.Body.Close() // any response means that it is running
			return nil
		}
		select {
		case err := <-ended:
			s.cmd = nil
			return errors.Join(fmt.Errorf("the S3 server ended: %s", strings.TrimSpace(s.log.String())), err)
		case <-time.After(20 * time.Millisecond): // there is nothing to wait for but its answer
		}
	}
}

func (s *s3) stop() {
	if s.cmd != nil {
		_ = s.cmd.Process.Kill() // it may have ended
	}
	if s.dir != "" {
		_ = os.RemoveAll(s.dir) // a temporary directory
	}
}
