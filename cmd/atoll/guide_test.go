package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/atoll-run/atoll/internal/need"
)

// block is a fenced block of a page.
var block = regexp.MustCompile("(?ms)^```(sh|sh fails|output)\n(.*?)^```$")

// guides are the pages of docs whose commands are run, with a function that prepares a
// page's prerequisites, if any. A heading after a # names a section of a page that
// is run alone. The blocks of sh run in one shell and
// directory, one after the other, and the standard output of each is compared
// with the following output block. A block "sh fails" must fail, and its
// standard error counts as output. A line "..." matches any lines, and "…" any
// text within a line.
var guides = map[string]func(*testing.T, *guideRunner){
	"guide/getting-started.md":    nil,
	"guide/sessions.md":           nil,
	"guide/console.md":            nil,
	"reference/environment.md":    nil,
	"operate/mirrors.md":          serveMirror,
	"guide/secrets.md":            serveGit,
	"guide/remote-daemon.md":      nil,
	"guide/ports.md":              nil,
	"guide/coming-from.md#Docker": useDebian,
	"guide/coming-from.md#E2B":    nil,
	"guide/coming-from.md#Modal":  usePython,
	"guide/libraries.md":          usePython,
	"guide/troubleshooting.md":    nil,
	"guide/several-machines.md":   nil,
	"operate/uninstall.md":        nil,
}

func TestGuides(t *testing.T) {
	for page, prepare := range guides {
		t.Run(filepath.Base(page), func(t *testing.T) {
			t.Parallel()
			name, heading, _ := strings.Cut(page, "#")
			text, err := os.ReadFile(filepath.Join("../../docs", name))
			if err != nil {
				t.Fatal(err)
			}
			g := newGuideRunner(t)
			if prepare != nil {
				prepare(t, g)
			}
			g.run(t, section(t, string(text), heading))
		})
	}
}

// section returns the part of a page below a heading of the second level, or the
// whole page without a heading.
func section(t *testing.T, page, heading string) string {
	t.Helper()
	if heading == "" {
		return page
	}
	_, rest, found := strings.Cut(page, "\n## "+heading+"\n")
	if !found {
		t.Fatalf("the page has no section %q", heading)
	}
	text, _, _ := strings.Cut(rest, "\n## ")
	return text
}

// guideRunner runs the commands of a page.
type guideRunner struct {
	dir     string
	env     []string
	replace []string // pairs: the page's text, and the replacement in this test
	inside  []string // the program that runs the shell elsewhere, if any
}

// guidePorts are the ports of this machine that pages use. Tests replace them,
// because they run in parallel.
var guidePorts = []string{"13000", "17070", "17081", "17082", "17171", "17443", "18000", "18080"}

// usePorts makes the pages use free ports.
func (g *guideRunner) usePorts(t *testing.T) {
	t.Helper()
	for _, port := range guidePorts {
		g.replace = append(g.replace, port, g.freePort(t))
	}
}

// freePort returns a port that nothing listens on, and that no connection gets by
// chance.
func (g *guideRunner) freePort(t *testing.T) string {
	t.Helper()
	for {
		port := strconv.Itoa(20000 + rand.IntN(12000))
		l, err := net.Listen("tcp", "127.0.0.1:"+port)
		switch {
		case errors.Is(err, syscall.EADDRINUSE), err == nil && slices.Contains(g.replace, port):
			if err == nil {
				l.Close()
			}
			continue
		case err != nil:
			t.Fatal(err)
		}
		l.Close()
		return port
	}
}

func newGuideRunner(t *testing.T) *guideRunner {
	dir := t.TempDir()
	home := filepath.Join(dir, "home")
	if err := os.Mkdir(home, 0o755); err != nil {
		t.Fatal(err)
	}
	g := &guideRunner{dir: home, env: append(os.Environ(), "HOME="+home, "ATOLL_STATE_DIR="+filepath.Join(dir, "state"), "LC_ALL=C.UTF-8",
		"PATH="+filepath.Dir(link(t))+":"+os.Getenv("PATH"))}
	g.usePorts(t)
	return g
}

// TestFirstHour runs the steps of Getting started in a fresh Debian, whose root
// is ATOLL_DEBIAN, with the program of its package. The output is the same for
// root and for an unprivileged user.
func TestFirstHour(t *testing.T) {
	root := os.Getenv("ATOLL_DEBIAN")
	if root == "" {
		need.Thing(t, "make first-hour", "")
	}
	page, err := os.ReadFile("../../docs/guide/getting-started.md")
	if err != nil {
		t.Fatal(err)
	}
	enter, err := filepath.Abs("../../build/scripts/debian")
	if err != nil {
		t.Fatal(err)
	}
	if steps := len(regexp.MustCompile(`(?m)^# \d+\. `).FindAll(page, -1)); steps < 60 {
		t.Errorf("the page has only %d steps", steps)
	}
	for _, user := range []string{"root", "alice"} {
		t.Run(user, func(t *testing.T) {
			g := newGuideRunner(t)
			g.inside = []string{enter, "run", root, user}
			g.run(t, string(page))
		})
	}
}

// run runs a page and compares the output.
func (g *guideRunner) run(t *testing.T, page string) {
	t.Helper()
	blocks := block.FindAllStringSubmatch(strings.NewReplacer(g.replace...).Replace(page), -1)
	if len(blocks) < 2 {
		t.Fatalf("the page has only %d blocks to run", len(blocks))
	}
	script := guideScript(blocks)
	if g.inside == nil {
		need.Commands(t, script)
	}
	t.Cleanup(func() { g.shell(t, "atoll rm --force --all; atoll down") })
	out, stderr, err := g.shell(t, script)
	parts := strings.Split(out, guideMark)
	ran, last := 0, ""
	for _, b := range blocks {
		switch {
		case b[1] == "output" && !similar(parts[ran], b[2]):
			t.Errorf("after\n%s\ngot:\n%s\nthe page says:\n%s\n%s", last, parts[ran], b[2], stderr)
		case b[1] != "output":
			if ran+1 == len(parts) {
				t.Fatalf("%v in this block:\n%s\n%s\n%s", err, last, parts[ran], stderr)
			}
			ran, last = ran+1, b[2]
		}
	}
	if err != nil {
		t.Errorf("%v in this block:\n%s\n%s\n%s", err, last, parts[ran], stderr)
	}
}

const guideMark = "\x00"

// guideScript returns a script that runs all blocks and marks the start of
// each.
func guideScript(blocks [][]string) string {
	var script strings.Builder
	for _, b := range blocks {
		switch b[1] {
		case "sh":
			fmt.Fprintf(&script, "printf '\\000'\n%s", b[2])
		case "sh fails":
			fmt.Fprintf(&script, "printf '\\000'\nif {\n%s} 2>&1; then exit 99; fi\n", b[2])
		}
	}
	return script.String()
}

// shell runs a script. Its output goes to files, so that background processes
// do not block the test. They end with the test.
func (g *guideRunner) shell(t *testing.T, script string) (stdout, stderr string, err error) {
	t.Helper()
	dir := t.TempDir()
	create := func(name string) *os.File {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	args := append(slices.Clone(g.inside), "sh", "-eu", "-c", script)
	cmd := exec.Command(args[0], args[1:]...)
	out, errs := create("out"), create("err")
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = g.dir, g.env, out, errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = cmd.Run()
	if cmd.Process != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
	}
	for _, f := range []*os.File{out, errs} {
		_ = f.Close()
	}
	read := func(f *os.File) string {
		text, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	return read(out), read(errs), err
}

// similar compares output with what a page says.
func similar(got, want string) bool {
	pattern := regexp.QuoteMeta(want)
	pattern = strings.ReplaceAll(pattern, regexp.QuoteMeta("...\n"), "(?s:.*)")
	pattern = strings.ReplaceAll(pattern, "…", ".*")
	return regexp.MustCompile("^" + pattern + "$").MatchString(got)
}
