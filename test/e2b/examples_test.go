//go:build e2b

package e2b

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestExamples runs the examples of examples/e2b unchanged and compares their
// output.
func TestExamples(t *testing.T) {
	t.Parallel()
	a := start(t)
	const examples = "../../examples/e2b"
	run := func(name, want string, program ...string) {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(program[0], program[1:]...)
			cmd.Env = append(append(os.Environ(), a.env...), "PYTHONDONTWRITEBYTECODE=1")
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil || string(out) != want {
				t.Errorf("%v: it says\n%s, want\n%s\n%s", err, out, want, &stderr)
			}
		})
	}
	python := filepath.Join(pip(t, "examples"), "bin/python")
	run("python", "live: computing\nresult: 30\nerror: IndexError list index out of range\ncommand: 3\nfile: 3\n",
		python, examples+"/python/main.py")
	run("langchain", "tool: 10\ntool: ZeroDivisionError: division by zero\ntool: 129\nanswer: There are 10 primes below 30; they add up to 129.\n",
		python, examples+"/langchain/main.py")
	run("javascript", "live: computing\nresult: 30\njavascript: [2,4,6]\ncommand: 3\nfile: 3\n", "node", besideModules(t, examples+"/javascript/main.mjs"))
}

// besideModules copies a program to a directory where node finds its imports.
func besideModules(t *testing.T, file string) string {
	t.Helper()
	dir := t.TempDir()
	text, err := os.ReadFile(file)
	if err == nil {
		err = os.Symlink(filepath.Join(npm(t, "code-interpreter-2.8.0"), "node_modules"), filepath.Join(dir, "node_modules"))
	}
	copied := filepath.Join(dir, filepath.Base(file))
	if err == nil {
		err = os.WriteFile(copied, text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	return copied
}
