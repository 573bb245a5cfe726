package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// block is a fenced block of a page.
var block = regexp.MustCompile("(?ms)^```(sh|sh fails|output)\n(.*?)^```$")

// guides are the pages whose commands are run, and what prepares what a page
// takes for granted, if anything has to. The blocks of sh run one after the other
// in one shell and directory, and the standard output of each is compared with
// the block of output that follows. A block "sh fails" must fail, and its standard
// error counts as output. A line "..." stands for any lines, and "…" for any text
// within a line.
var guides = map[string]func(*testing.T, *guideRunner){
	"getting-started.md": nil,
	"sessions.md":        nil,
	"environment.md":     nil,
	"web-server.md":      nil,
	"mirrors.md":         serveMirror,
	"private-git.md":     serveGit,
	"remote-daemon.md":   nil,
	"from-docker.md":     useDebian,
	"from-e2b.md":        nil,
	"agent-loop.md":      usePython,
	"from-modal.md":      usePython,
	"troubleshooting.md": nil,
	"uninstall.md":       nil,
}

func TestGuides(t *testing.T) {
	for page, prepare := range guides {
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(filepath.Join("../../docs/guide", page))
			if err != nil {
				t.Fatal(err)
			}
			g := newGuideRunner(t)
			if prepare != nil {
				prepare(t, g)
			}
			g.run(t, string(text))
		})
	}
}

// guideRunner runs the commands of a page.
type guideRunner struct {
	dir     string
	env     []string
	replace []string // pairs: what the page calls it, and what it is in this test
}

func newGuideRunner(t *testing.T) *guideRunner {
	dir := t.TempDir()
	home := filepath.Join(dir, "home")
	if err := os.Mkdir(home, 0o755); err != nil {
		t.Fatal(err)
	}
	return &guideRunner{dir: home, env: append(os.Environ(), "HOME="+home, "ATOLL_STATE_DIR="+filepath.Join(dir, "state"), "LC_ALL=C.UTF-8",
		"PATH="+filepath.Dir(link(t))+":"+os.Getenv("PATH"))}
}

// run runs a page and compares.
func (g *guideRunner) run(t *testing.T, page string) {
	t.Helper()
	blocks := block.FindAllStringSubmatch(strings.NewReplacer(g.replace...).Replace(page), -1)
	if len(blocks) < 2 {
		t.Fatalf("the page has only %d blocks to run", len(blocks))
	}
	t.Cleanup(func() { g.shell(t, "atoll rm --force --all; atoll down") })
	out, stderr, err := g.shell(t, guideScript(blocks))
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

// guideScript is a script that runs all blocks, and marks where each begins.
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

// shell runs a script. Its output goes to files: what it leaves running keeps
// nobody waiting, and ends with the test.
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
	cmd := exec.Command("sh", "-eu", "-c", script)
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
