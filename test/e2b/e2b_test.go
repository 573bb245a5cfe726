//go:build e2b

package e2b

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/atoll-run/atoll/internal/envd"
	"github.com/atoll-run/atoll/internal/need"
)

// atoll is a daemon for clients of E2B.
type atoll struct {
	bin, state string
	env        []string // environment for the SDKs
}

// domain is the domain of sandboxes' host names. It does not exist in the DNS.
const domain = "box.atoll.test"

// start starts a daemon that ends with the test, with all its sandboxes.
func start(t *testing.T, flags ...string) *atoll {
	t.Helper()
	bin := os.Getenv("ATOLL_BIN")
	if bin == "" {
		bin = build(t)
	}
	a := &atoll{bin: bin, state: os.Getenv("ATOLL_E2B_STATE")} // with a built image
	if a.state == "" {
		a.state = t.TempDir()
	}
	verifier := httptest.NewServer(http.HandlerFunc(showIdentity))
	t.Cleanup(verifier.Close)
	_, port, _ := strings.Cut(verifier.Listener.Addr().String(), ":")
	a.env = append(a.env, "E2B_TEST_IDENTITY=host.atoll.internal:"+port)
	daemon := exec.Command(bin, append([]string{"up", "--e2b=127.0.0.1:0", "--e2b-domain=", "--egress-host-ports=" + port}, flags...)...)
	// The tests' registry listens on this machine.
	daemon.Env = append(os.Environ(), "ATOLL_STATE_DIR="+a.state, "ATOLL_EGRESS_ALLOW=127.0.0.0/8", "AWS_ENDPOINT_URL_ECR="+startECR(t))
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
	ready := regexp.MustCompile(`serving clients of E2B`)
	for {
		line, err := log.ReadString('\n')
		if ready.MatchString(line) {
			break
		}
		if err != nil {
			t.Fatalf("the daemon did not start: %v %s", err, line)
		}
		t.Log(line)
	}
	drained.Go(func() { _, _ = io.Copy(testLog{t}, log) })
	t.Cleanup(func() { a.removeAll(t) })
	for _, line := range strings.Split(strings.TrimSpace(a.run(t, "e2b", "env", "--admin")), "\n") {
		a.env = append(a.env, strings.TrimPrefix(line, "export "))
	}
	rival := a.run(t, "key", "create", "--tenant", "rival", "--allow", "read,exec,write")
	a.env = append(a.env, "E2B_TEST_RIVAL="+envd.Key(strings.TrimSpace(rival)))
	return a
}

// removeAll removes and reports the sandboxes that failed cases left behind.
// Every case removes its own.
func (a *atoll) removeAll(t *testing.T) {
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

func build(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for d := dir; d != "/"; d = filepath.Dir(d) { // kernels run as nobody
		if info, err := os.Stat(d); err == nil && info.Mode().Perm()&0o005 == 0 {
			_ = os.Chmod(d, 0o755)
		}
	}
	bin := filepath.Join(dir, "atoll")
	cmd := exec.Command("go", "build", "-o", bin, "github.com/atoll-run/atoll/cmd/atoll")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return bin
}

// testLog receives the daemon's log.
type testLog struct{ t *testing.T }

func (l testLog) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(password)) {
		l.t.Error("the daemon's log contains the password of a registry")
	}
	l.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// report is a program's report about a case, or at its end.
type report struct {
	Name    string
	OK      bool
	Error   string
	MS      int64
	Done    bool
	Version string
	// Methods are the public methods of the SDK, found by reflection, and whether
	// a case called them.
	Methods map[string]bool
}

// allCases is cases for programs that must call every method of their SDK.
func (a *atoll) allCases(t *testing.T, version string, env []string, program ...string) {
	t.Helper()
	const fewest = 40 // every version has at least as many
	a.casesOf(t, fewest, version, env, program...)
}

// casesOf is cases for programs that must call all methods found. There must be
// at least fewest methods.
func (a *atoll) casesOf(t *testing.T, fewest int, version string, env []string, program ...string) {
	t.Helper()
	end := a.cases(t, version, env, program...)
	if t.Failed() {
		return // after a failure, missing calls mean nothing
	}
	t.Run("every method is called or listed", func(t *testing.T) { everyMethod(t, end.Methods, fewest) })
}

// cases runs a program and runs a subtest for each case that it reports. A
// program that does not reach its end has failed.
func (a *atoll) cases(t *testing.T, version string, env []string, program ...string) (end report) {
	t.Helper()
	cmd := exec.Command(program[0], program[1:]...)
	cmd.Env = append(append(os.Environ(), a.env...), env...)
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
		t.Run(r.Name, func(t *testing.T) {
			if !r.OK {
				t.Errorf("after %d ms: %s", r.MS, r.Error)
			}
		})
	}
	if err := cmd.Wait(); err != nil || !end.Done || end.Version != version {
		t.Errorf("the program ended with %v, version %q\n%s", err, end.Version, &stderr)
	}
	return end
}

var listedMethod = regexp.MustCompile("(?m)^\\| `([A-Za-z]+[.#][A-Za-z_]+)` \\|")

// everyMethod fails for methods that no case calls, unless docs/guide/e2b.md
// lists them as untested. It detects new methods of a new SDK version.
func everyMethod(t *testing.T, methods map[string]bool, fewest int) {
	text, err := os.ReadFile("../../docs/guide/e2b.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, m := range listedMethod.FindAllStringSubmatch(string(text), -1) {
		listed[m[1]] = true
	}
	if len(methods) < fewest {
		t.Errorf("the SDK seems to have only %d methods", len(methods))
	}
	for name, called := range methods {
		if !called && !listed[name] {
			t.Errorf("no case calls %s, and docs/guide/e2b.md does not list it", name)
		}
	}
}

func TestJavaScript(t *testing.T) {
	t.Parallel()
	a := start(t)
	for _, version := range javaScript {
		t.Run(version, func(t *testing.T) { a.javaScript(t, version) })
	}
}

// TestJavaScriptByName uses sandboxes by host name over TLS, as versions do
// that support nothing else, and over HTTP/2 where the SDK supports it.
func TestJavaScriptByName(t *testing.T) {
	t.Parallel()
	a := start(t, "--e2b-domain="+domain)
	for _, version := range javaScriptByName {
		t.Run(version, func(t *testing.T) { a.javaScript(t, version, "--require", "./js/resolve.cjs") })
	}
}

func (a *atoll) javaScript(t *testing.T, version string, flags ...string) {
	dir := npm(t, "e2b-"+version)
	program := append(append([]string{"node"}, flags...), "js/main.mjs")
	env := append(append(a.guarded(t), outside(t)...), "E2B_TEST_MODULES="+dir, "E2B_TEST_NAME="+domain)
	a.allCases(t, version, env, program...)
}

func TestPython(t *testing.T) {
	t.Parallel()
	a := start(t)
	for _, version := range python {
		a.python(t, version, nil)
	}
}

// TestPythonByName does the same with a version that supports only host names,
// and with the newest, which resolves names outside Python.
func TestPythonByName(t *testing.T) {
	t.Parallel()
	a := start(t, "--e2b-domain="+domain)
	for _, version := range pythonByName {
		a.python(t, version, resolving(t))
	}
}

// python runs the programs, with by as the command prefix.
func (a *atoll) python(t *testing.T, version string, by []string) {
	for _, mode := range []string{"sync", "async"} {
		t.Run(version+"/"+mode, func(t *testing.T) {
			a.allCases(t, version, append(append(pythonEnv(mode), a.guarded(t)...), outside(t)...), append(slices.Clone(by), filepath.Join(pip(t, "e2b-"+version), "bin/python"), "py/main.py")...)
		})
	}
}

// builtImage reports whether the sandboxes have a built image, with everything
// that it promises.
func builtImage() bool { return os.Getenv("ATOLL_E2B_STATE") != "" }

// pythonEnv is the environment of a Python program. In it the names of
// sandboxes resolve to this machine.
func pythonEnv(mode string) []string {
	env := []string{"E2B_TEST_MODE=" + mode, "E2B_TEST_NAME=" + domain, "PYTHONDONTWRITEBYTECODE=1"}
	if builtImage() {
		env = append(env, "E2B_TEST_CHARTS=1")
	}
	return env
}

// TestInterpreter runs code in sandboxes with the code interpreter's SDKs.
func TestInterpreter(t *testing.T) {
	t.Parallel()
	a := start(t)
	for _, version := range interpreterJavaScript {
		t.Run("js/"+version, func(t *testing.T) { a.interpreterJavaScript(t, version) })
	}
	for _, version := range interpreterPython {
		a.interpreterPython(t, version)
	}
}

// TestInterpreterByName does the same with versions that support only host
// names.
func TestInterpreterByName(t *testing.T) {
	t.Parallel()
	a := start(t, "--e2b-domain="+domain)
	for _, version := range interpreterJavaScriptByName {
		t.Run("js/"+version, func(t *testing.T) { a.interpreterJavaScript(t, version, "--require", "./js/resolve.cjs") })
	}
	for _, version := range interpreterPythonByName {
		a.interpreterPython(t, version)
	}
}

// ownMethods is the minimum number of methods that the code interpreter's SDKs
// add.
const ownMethods = 2

func (a *atoll) interpreterJavaScript(t *testing.T, version string, flags ...string) {
	dir := npm(t, "code-interpreter-"+version)
	env := []string{"E2B_TEST_MODULES=" + dir, "E2B_TEST_NAME=" + domain}
	a.casesOf(t, ownMethods, version, append(env, packagesEnv(t)...), append(append([]string{"node"}, flags...), "js/interpreter.mjs")...)
}

// packagesEnv returns the location of matplotlib, for sandboxes whose image
// lacks it.
func packagesEnv(t *testing.T) []string {
	if builtImage() {
		return nil
	}
	return []string{"E2B_TEST_PACKAGES=" + filepath.Join(pip(t, "matplotlib"), "packages.tar")}
}

func (a *atoll) interpreterPython(t *testing.T, version string) {
	dir := pip(t, "code-interpreter-"+version)
	for _, mode := range []string{"sync", "async"} {
		t.Run("py/"+version+"/"+mode, func(t *testing.T) {
			a.casesOf(t, ownMethods, version, append(pythonEnv(mode), packagesEnv(t)...), filepath.Join(dir, "bin/python"), "py/interpreter.py")
		})
	}
}

// TestDesktop uses desktops with the desktop SDKs; see make desktop-image-e2b.
func TestDesktop(t *testing.T) {
	if !builtImage() {
		need.Thing(t, "make desktop-image-e2b", "")
	}
	a := start(t)
	for _, version := range desktopJavaScript {
		t.Run("js/"+version, func(t *testing.T) {
			a.casesOf(t, desktopMethods, version, []string{"E2B_TEST_MODULES=" + npm(t, "desktop-"+version), "E2B_TEST_NAME=" + domain}, "node", "js/desktop.mjs")
		})
	}
	for _, version := range desktopPython {
		t.Run("py/"+version, func(t *testing.T) {
			a.casesOf(t, desktopMethods, version, pythonEnv("sync"), filepath.Join(pip(t, "desktop-"+version), "bin/python"), "py/desktop.py")
		})
	}
}

// desktopMethods is the minimum number of methods that the desktop SDKs add.
const desktopMethods = 20
