package blobtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/atoll-run/atoll/internal/blob"
)

// A product is a real S3 server that stores buckets in a directory. It is built
// from the module proxy on first use and kept in the user's cache, unless
// $ATOLL_S3_SERVER names one.
type product struct {
	program string
	module  string // of its main package, with its version
	// args returns the arguments for an address and an empty directory, which it may
	// prepare.
	args func(address, dir string) ([]string, error)
	env  []string
}

// products are the servers, by the value of $ATOLL_S3.
var products = map[string]product{
	"": {
		program: "versitygw", module: "github.com/versity/versitygw/cmd/versitygw@v1.8.0",
		args: func(address, dir string) ([]string, error) {
			accounts := fmt.Sprintf(`{"accessAccounts":{%q:{"access":%[1]q,"secret":%q,"role":"user"}}}`, limitedKey, secretKey)
			err := errors.Join(os.MkdirAll(filepath.Join(dir, "data"), 0o755), os.MkdirAll(filepath.Join(dir, "users"), 0o755),
				os.WriteFile(filepath.Join(dir, "users", "users.json"), []byte(accounts), 0o600))
			return []string{"--port", address, "--quiet", "--iam-dir", filepath.Join(dir, "users"), "posix", filepath.Join(dir, "data")}, err
		},
		env: []string{"ROOT_ACCESS_KEY=" + accessKey, "ROOT_SECRET_KEY=" + secretKey},
	},
	"minio": {
		program: "minio", module: "github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c",
		args: func(address, dir string) ([]string, error) {
			return []string{"server", "--quiet", "--address", address, "--certs-dir", filepath.Join(dir, "certs"), filepath.Join(dir, "data")}, nil
		},
		env: []string{"MINIO_ROOT_USER=" + accessKey, "MINIO_ROOT_PASSWORD=" + secretKey, "MINIO_BROWSER=off", "MINIO_UPDATE=off"},
	},
}

// The server's credentials. It listens on the loopback address only.
const (
	accessKey  = "atoll-test"
	secretKey  = "not-much-of-a-secret"
	limitedKey = "atoll-limited"
)

// Main runs the tests of a package that uses [S3], and then stops the server.
// It returns the exit code. Call it from TestMain.
func Main(m *testing.M) int {
	code := m.Run()
	Stop()
	return code
}

// Stop stops the server, with its buckets, in packages whose TestMain does not use
// Main. A later [S3] starts another one.
func Stop() {
	server.stop()
	server = s3{}
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
	client, err := server.client()
	if err == nil {
		err = client.MakeBucket(t.Context(), name, minio.MakeBucketOptions{Region: region})
	}
	if err != nil {
		t.Fatal(err)
	}
	return "s3://" + name + "?region=" + region + "&endpoint=http://" + server.address
}

// Limit sets other credentials in the test's environment, of a key that may do
// in the bucket of an address of S3 what a policy of IAM allows, and nothing else.
func Limit(t *testing.T, address, policy string) {
	t.Helper()
	where, err := blob.ParseS3(address)
	if err != nil {
		t.Fatal(err)
	}
	if os.Getenv("ATOLL_S3") == "minio" {
		session, err := credentials.NewSTSAssumeRole("http://"+server.address, credentials.STSAssumeRoleOptions{
			AccessKey: accessKey, SecretKey: secretKey, Location: region, Policy: policy,
		})
		if err != nil {
			t.Fatal(err)
		}
		key, err := session.GetWithContext(nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv("AWS_ACCESS_KEY_ID", key.AccessKeyID)
		t.Setenv("AWS_SECRET_ACCESS_KEY", key.SecretAccessKey)
		t.Setenv("AWS_SESSION_TOKEN", key.SessionToken)
		return
	}
	// It has policies of buckets, whose statements also name the key.
	var doc map[string]any
	if err := json.Unmarshal([]byte(policy), &doc); err != nil {
		t.Fatal(err)
	}
	statements, _ := doc["Statement"].([]any)
	for _, s := range statements {
		s.(map[string]any)["Principal"] = map[string]any{"AWS": []string{limitedKey}}
	}
	encoded, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	client, err := server.client()
	if err == nil {
		err = client.SetBucketPolicy(t.Context(), where.Bucket, string(encoded))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", limitedKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", secretKey)
}

// NodePolicy returns the policy that the guide gives for the key of nodes that share
// images at an address, s3://BUCKET/PREFIX.
func NodePolicy(t *testing.T, address string) string {
	t.Helper()
	_, file, _, _ := runtime.Caller(0)
	guide, err := os.ReadFile(filepath.Join(filepath.Dir(file), "../../../docs/guide/several-machines.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?s)```json\n(.*?)```").FindSubmatch(guide)
	where, err := blob.ParseS3(address)
	if found == nil || err != nil {
		t.Fatalf("the guide has the policy %q: %v", found, err)
	}
	return strings.NewReplacer("BUCKET", where.Bucket, "PREFIX", where.Prefix).Replace(string(found[1]))
}

// region is that of the server.
const region = "us-east-1"

// client returns a client that may do everything.
func (s *s3) client() (*minio.Client, error) {
	return minio.New(s.address, &minio.Options{Creds: credentials.NewStaticV4(accessKey, secretKey, ""), Region: region})
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
	exited  chan struct{} // closed when cmd has ended
	log     bytes.Buffer
}

func (s *s3) start() (err error) {
	if s.dir, err = os.MkdirTemp("", "atoll-s3-"); err != nil {
		return err
	}
	p, ok := products[os.Getenv("ATOLL_S3")]
	if !ok {
		return fmt.Errorf("ATOLL_S3: there is no S3 server %q", os.Getenv("ATOLL_S3"))
	}
	binary := os.Getenv("ATOLL_S3_SERVER")
	if binary == "" {
		if binary, err = p.install(s.dir); err != nil {
			return err
		}
	}
	for range 5 { // another process may take the port first
		if err = s.serve(p, binary); err == nil {
			return nil
		}
	}
	return err
}

// install builds the server on first use and returns its path. dir is not in a
// module.
func (p product) install(dir string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	cache = filepath.Join(cache, "atoll-test", p.module[strings.LastIndex(p.module, "/")+1:])
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
	binary := filepath.Join(cache, p.program)
	if _, err := os.Stat(binary); err == nil {
		return binary, nil
	}
	build := exec.CommandContext(context.Background(), "go", "install", p.module)
	build.Dir = dir
	build.Env = append(os.Environ(), "GOBIN="+dir, "CGO_ENABLED=0", "GOFLAGS=-mod=mod -ldflags=-s")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the S3 server: %w\n%s", err, out)
	}
	data, err := os.ReadFile(filepath.Join(dir, p.program))
	if err == nil {
		err = os.WriteFile(binary+".new", data, 0o755)
	}
	if err == nil {
		err = os.Rename(binary+".new", binary) // atomically
	}
	return binary, err
}

// serve starts the server and waits until it responds.
func (s *s3) serve(p product, binary string) error {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s.address = free.Addr().String()
	_ = free.Close() // only used to find a free port
	s.log.Reset()
	args, err := p.args(s.address, s.dir)
	if err != nil {
		return err
	}
	s.cmd = exec.CommandContext(context.Background(), binary, args...)
	s.cmd.Env = append(os.Environ(), p.env...)
	s.cmd.Stdout, s.cmd.Stderr = &s.log, &s.log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	cmd, ended := s.cmd, make(chan error, 1)
	exited := make(chan struct{})
	s.exited = exited
	go func() {
		ended <- cmd.Wait()
		close(exited)
	}()
	client := http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
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
		<-s.exited
	}
	if s.dir != "" {
		_ = os.RemoveAll(s.dir) // a temporary directory
	}
}
