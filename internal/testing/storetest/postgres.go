package storetest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"go.uber.org/goleak"

	"github.com/atoll-run/atoll/internal/need"
)

const install = "PostgreSQL is not installed: run `apt-get install postgresql`, or put initdb and postgres into PATH"

// Main runs the tests of a package that uses [Postgres] and stops the server
// after them. It fails if goroutines are left. It is for TestMain and returns
// the exit code.
func Main(m *testing.M) int {
	code := m.Run()
	Stop()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
}

// Stop stops the server of [Postgres], for a TestMain that does more than [Main].
func Stop() { server.stop() }

// Postgres returns the address of a new, empty database. It is dropped with
// the test.
func Postgres(t testing.TB) string {
	t.Helper()
	if _, err := programs(); err != nil {
		need.Thing(t, "postgresql", "")
	}
	if err := server.start(); err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("test%d", databases.Add(1))
	if err := server.exec("CREATE DATABASE " + name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.exec("DROP DATABASE " + name + " WITH (FORCE)"); err != nil {
			t.Error(err)
		}
	})
	return server.url(name)
}

// Disconnect ends every session of the database at address, as a failing
// network or server would.
func Disconnect(t testing.TB, address string) {
	t.Helper()
	command(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '"+database(t, address)+"'")
}

// Refuse ends every session of the database at address and refuses new ones,
// until restore is called.
func Refuse(t testing.TB, address string) (restore func()) {
	t.Helper()
	name := database(t, address)
	command(t, "ALTER DATABASE "+name+" ALLOW_CONNECTIONS false")
	Disconnect(t, address)
	return func() { command(t, "ALTER DATABASE "+name+" ALLOW_CONNECTIONS true") }
}

func database(t testing.TB, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(u.Path, "/")
}

func command(t testing.TB, statement string) {
	t.Helper()
	if err := server.exec(statement); err != nil {
		t.Fatal(err)
	}
}

var (
	server    cluster
	databases atomic.Int64
)

// cluster is a PostgreSQL server that listens on a Unix socket in a directory
// of its own.
type cluster struct {
	once sync.Once
	err  error
	dir  string
	quit chan struct{} // closed to stop the server
	done chan struct{} // closed when it has ended
}

func (c *cluster) url(database string) string {
	q := url.Values{"host": {c.dir}, "user": {"postgres"}}
	return "postgres:///" + database + "?" + q.Encode()
}

func (c *cluster) exec(statement string) error {
	db, err := sql.Open("pgx", c.url("postgres"))
	if err != nil {
		return err
	}
	_, err = db.ExecContext(context.Background(), statement)
	return errors.Join(err, db.Close())
}

func (c *cluster) start() error {
	c.once.Do(func() {
		if c.err = c.launch(); c.err != nil {
			c.stop()
		}
	})
	return c.err
}

func (c *cluster) launch() (err error) {
	bin, err := programs()
	if err != nil {
		return err
	}
	if c.dir, err = os.MkdirTemp("", "atoll-pg-"); err != nil {
		return err
	}
	attr, err := unprivileged(c.dir)
	if err != nil {
		return err
	}
	data := filepath.Join(c.dir, "data")
	initdb := exec.CommandContext(context.Background(), filepath.Join(bin, "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")
	initdb.SysProcAttr, initdb.Dir = attr, c.dir
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w\n%s", err, out)
	}
	cmd := exec.CommandContext(context.Background(), filepath.Join(bin, "postgres"), "-D", data, "-k", c.dir, "-c", "listen_addresses=",
		"-c", "fsync=off", "-c", "max_connections=200")
	cmd.SysProcAttr, cmd.Dir = attr, c.dir
	log, err := os.Create(filepath.Join(c.dir, "log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd.Stdout, cmd.Stderr = log, log
	c.quit, c.done = make(chan struct{}), make(chan struct{})
	started := make(chan error)
	go c.run(cmd, started)
	if err := <-started; err != nil {
		return err
	}
	return c.await()
}

// run starts the server and ends it when quit is closed. It locks its thread,
// because the server gets a signal when the thread that started it ends. So the
// server always ends with the test binary.
func (c *cluster) run(cmd *exec.Cmd, started chan<- error) {
	runtime.LockOSThread()
	defer close(c.done)
	err := cmd.Start()
	started <- err
	if err != nil {
		return
	}
	ended := make(chan struct{})
	go func() {
		select {
		case <-c.quit:
			_ = cmd.Process.Signal(syscall.SIGINT) // fast shutdown
		case <-ended:
		}
	}()
	_ = cmd.Wait()
	close(ended)
}

// await returns when the server accepts connections.
func (c *cluster) await() error {
	deadline := time.Now().Add(30 * time.Second)
	for {
		err := c.exec("SELECT 1")
		if err == nil {
			return nil
		}
		select {
		case <-c.done:
			log, _ := os.ReadFile(filepath.Join(c.dir, "log"))
			return fmt.Errorf("postgres ended: %s", log)
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("postgres does not answer: %w", err)
		}
	}
}

func (c *cluster) stop() {
	if c.quit != nil {
		close(c.quit)
		<-c.done
		c.quit = nil
	}
	if c.dir != "" {
		_ = os.RemoveAll(c.dir)
	}
}

// programs finds the directory of the server's programs, which Debian keeps
// out of PATH.
func programs() (string, error) {
	if path, err := exec.LookPath("initdb"); err == nil {
		return filepath.Dir(path), nil
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil || len(found) == 0 {
		return "", errors.New(install)
	}
	slices.SortFunc(found, func(a, b string) int { return major(a) - major(b) })
	return filepath.Dir(found[len(found)-1]), nil
}

func major(path string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
	return n
}

// unprivileged makes the user postgres the owner of dir if root runs the tests,
// because the server refuses to run as root.
func unprivileged(dir string) (*syscall.SysProcAttr, error) {
	attr := &syscall.SysProcAttr{Pdeathsig: syscall.SIGQUIT}
	if os.Getuid() != 0 {
		return attr, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("%s (%w)", install, err)
	}
	uid, err1 := strconv.Atoi(u.Uid)
	gid, err2 := strconv.Atoi(u.Gid)
	if err := errors.Join(err1, err2, os.Chown(dir, uid, gid)); err != nil {
		return nil, err
	}
	attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return attr, nil
}
