//go:build bridge

package bridge

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// The tested versions, as in the lock files. docs/guide/bridge.md names them.
const (
	python     = "0.24.0"
	javaScript = "0.18.0"
)

// fewest is the minimum number of cases in a program.
const fewest = 7

func TestPython(t *testing.T) {
	a := start(t)
	a.url = fault(t, a.url)
	a.cases(t, python, filepath.Join(pip(t), "bin/python"), "py/main.py")
}

func TestJavaScript(t *testing.T) {
	a := start(t)
	a.url = fault(t, a.url)
	a.cases(t, javaScript, "node", filepath.Join(npm(t), "main.mjs"))
}

// atoll is a daemon with the bridge.
type atoll struct {
	bin, state, url, key string
}

var serving = regexp.MustCompile(`serving clients of Cloudflare's sandbox bridge on (\S+)`)

// start starts a daemon that ends with the test, with all its sandboxes.
func start(t *testing.T) *atoll {
	t.Helper()
	bin := os.Getenv("ATOLL_BIN")
	if bin == "" {
		t.Fatal("ATOLL_BIN does not name the program to test; see: make bridge")
	}
	a := &atoll{bin: bin, state: t.TempDir()}
	daemon := exec.Command(bin, "up", "--bridge=127.0.0.1:0")
	daemon.Env = append(os.Environ(), "ATOLL_STATE_DIR="+a.state)
	stderr, err := daemon.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	log := bufio.NewReader(stderr)
	var drained sync.WaitGroup // the pipe is read to its end before Wait
	t.Cleanup(func() {
		_ = daemon.Process.Signal(syscall.SIGTERM)
		drained.Wait()
		if err := daemon.Wait(); err != nil {
			t.Errorf("the daemon: %v", err)
		}
	})
	for a.url == "" {
		line, err := log.ReadString('\n')
		if m := serving.FindStringSubmatch(line); m != nil {
			a.url = "http://" + m[1]
		} else if err != nil {
			t.Fatalf("the daemon did not start: %v %s", err, line)
		}
	}
	a.key = strings.TrimSpace(a.run(t, "key", "create"))
	drained.Go(func() { _, _ = io.Copy(testLog{t, a.key}, log) })
	t.Cleanup(func() { a.noneLeft(t) })
	return a
}

// noneLeft fails if a case left a sandbox behind, and removes it.
func (a *atoll) noneLeft(t *testing.T) {
	left := strings.Fields(a.run(t, "ls", "-q"))
	if len(left) == 0 {
		return
	}
	if !t.Failed() {
		t.Errorf("sandboxes are left: %v", left)
	}
	a.run(t, append([]string{"rm", "-f"}, left...)...)
}

// run runs the command line.
func (a *atoll) run(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.Command(a.bin, args...)
	cmd.Env = append(os.Environ(), "ATOLL_STATE_DIR="+a.state)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Errorf("atoll %s: %v\n%s", strings.Join(args, " "), err, &stderr)
	}
	return string(out)
}

// testLog receives the daemon's log.
type testLog struct {
	t   *testing.T
	key string
}

func (l testLog) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(l.key)) || bytes.Contains(p, []byte("canary")) {
		l.t.Error("the daemon's log contains a secret")
	}
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// report is a program's report about a case, or at its end.
type report struct {
	Name    string
	OK      bool
	Error   string
	Note    string // a figure
	MS      int64
	Done    bool
	Version string // of the SDK
}

// cases runs a program and runs a subtest for each case that it reports. A
// program that does not reach its end has failed.
func (a *atoll) cases(t *testing.T, version string, program ...string) {
	t.Helper()
	cmd := exec.Command(program[0], program[1:]...)
	cmd.Env = append(os.Environ(), "BRIDGE_URL="+a.url, "CLOUDFLARE_SANDBOX_API_KEY="+a.key, "PYTHONDONTWRITEBYTECODE=1", "OPENAI_AGENTS_DISABLE_TRACING=1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	lines.Buffer(nil, 16<<20)
	var end report
	ran := 0
	for lines.Scan() {
		var r report
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Errorf("the program says %q", lines.Text())
			continue
		}
		if r.Done {
			end = r
			continue
		}
		ran++
		t.Run(r.Name, func(t *testing.T) {
			if r.Note != "" {
				t.Log(r.Note)
			}
			if !r.OK {
				t.Errorf("after %d ms: %s", r.MS, r.Error)
			}
		})
	}
	if err := cmd.Wait(); err != nil || !end.Done || end.Version != version || ran < fewest {
		t.Errorf("the program ended with %v after %d cases, version %q\n%s", err, ran, end.Version, &stderr)
	}
}
