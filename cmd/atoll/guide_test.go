package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// block is a fenced block of a page.
var block = regexp.MustCompile("(?ms)^```(sh|output)\n(.*?)^```$")

// guides are the pages whose commands are run: each block of sh, one after the
// other in one directory, and its standard output compared with the block of
// output that follows. A line "..." stands for any lines.
var guides = []string{"getting-started.md", "sessions.md"}

func TestGuides(t *testing.T) {
	for _, page := range guides {
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			runGuide(t, page)
		})
	}
}

func runGuide(t *testing.T, page string) {
	text, err := os.ReadFile(filepath.Join("../../docs/guide", page))
	if err != nil {
		t.Fatal(err)
	}
	blocks := block.FindAllStringSubmatch(string(text), -1)
	if len(blocks) < 2 {
		t.Fatalf("%s has only %d blocks to run", page, len(blocks))
	}
	state, dir := t.TempDir(), t.TempDir()
	env := append(os.Environ(), "PATH="+filepath.Dir(built.atoll)+":"+os.Getenv("PATH"), "ATOLL_STATE_DIR="+state)
	run := func(script string) (string, error) {
		cmd := exec.Command("sh", "-eu", "-c", script)
		cmd.Dir, cmd.Env = dir, env
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Errorf("%s\n%s", err, stderr.String())
		}
		return string(out), err
	}
	t.Cleanup(func() { _, _ = run("atoll rm --force --all >/dev/null 2>&1 || :; atoll down >/dev/null 2>&1 || :") })
	var out string
	for _, b := range blocks {
		switch b[1] {
		case "sh":
			if out, err = run(b[2]); err != nil {
				t.Fatalf("this block failed:\n%s", b[2])
			}
		case "output":
			if !similar(out, b[2]) {
				t.Errorf("got:\n%s\nthe page says:\n%s", out, b[2])
			}
		}
	}
}

// similar compares output with what a page says.
func similar(got, want string) bool {
	pattern := regexp.QuoteMeta(want)
	pattern = strings.ReplaceAll(pattern, regexp.QuoteMeta("...\n"), "(?s:.*)")
	return regexp.MustCompile("^" + pattern + "$").MatchString(got)
}
