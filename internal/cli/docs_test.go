package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"mvdan.cc/sh/v3/syntax"

	"github.com/atoll-run/atoll/internal/cli/target"
)

var (
	fence = regexp.MustCompile("^\\s*(```+)(.*)$")
	code  = regexp.MustCompile("`(atoll [^`]+)`")
)

// Every command of ours on every page exists, with its flags and its number of
// arguments. TestGuides of cmd/atoll runs those of the guides, too.
func TestDocumentedCommands(t *testing.T) {
	seen := 0
	check := func(path string) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		opened, language := "", ""
		for i, line := range strings.Split(string(text), "\n") {
			where := fmt.Sprintf("%s:%d", path, i+1)
			switch m := fence.FindStringSubmatch(line); {
			case m != nil && opened == "":
				opened, language = m[1], m[2]
			case m != nil && m[1] == opened && m[2] == "":
				opened = ""
			case opened == "":
				for _, m := range code.FindAllStringSubmatch(line, -1) {
					seen++
					if err := parses(m[1], false); err != nil {
						t.Errorf("%s: %s: %v", where, m[1], err)
					}
				}
			case (language == "" || language == "sh") && !strings.Contains(line, "`") && !strings.Contains(line, "|| echo \"exit") && !strings.Contains(line, "|| true"): // those may be wrong
				for _, words := range ours(line) {
					seen++
					if err := parses(words, true); err != nil {
						t.Errorf("%s: %s: %v", where, words, err)
					}
				}
			}
		}
	}
	check("../../README.md")
	err := filepath.WalkDir("../../docs", func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ".md") && filepath.Base(path) != "cli.md" {
			check(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 300 {
		t.Errorf("%d commands were found; the pages have more", seen)
	}
	for _, wrong := range []string{
		"atoll image import --name base rootfs.tar", "atoll nothing", "atoll image nothing", "atoll run --nothing -- true", "atoll session rm", "atoll compose up",
	} {
		if parses(wrong, true) == nil {
			t.Errorf("%s is taken for right", wrong)
		}
	}
}

// ours returns the calls of atoll in a line of a shell, each as words that are
// separated by spaces. Lines that are no shell have none.
func ours(line string) (calls []string) {
	line = strings.TrimPrefix(strings.TrimSpace(line), "$ ")
	line = strings.TrimSuffix(line, "\\")
	file, err := syntax.NewParser().Parse(strings.NewReader(line), "")
	if err != nil {
		return nil
	}
	syntax.Walk(file, func(n syntax.Node) bool {
		call, ok := n.(*syntax.CallExpr)
		if !ok || len(call.Args) == 0 || call.Args[0].Lit() != "atoll" {
			return true
		}
		from, to := call.Args[0].Pos().Offset(), call.Args[len(call.Args)-1].End().Offset()
		calls = append(calls, line[from:to])
		return true
	})
	return calls
}

// parses reports what is wrong with a command line. If it is not whole, it may
// lack arguments.
func parses(line string, whole bool) error {
	file, err := syntax.NewParser().Parse(strings.NewReader(line), "")
	if err != nil || len(file.Stmts) == 0 {
		return nil //nolint:nilerr // text, such as `atoll run …`
	}
	call, ok := file.Stmts[0].Cmd.(*syntax.CallExpr)
	if !ok {
		return nil
	}
	var args []string
	for _, w := range call.Args[1:] {
		from, to := w.Pos().Offset(), w.End().Offset()
		args = append(args, strings.Trim(line[from:to], `"'`))
	}
	root := (&App{Env: &target.Env{Providers: []target.ProviderInfo{{Name: "gvisor"}}}}).root()
	root.InitDefaultCompletionCmd()
	cmd, rest, err := root.Find(args)
	switch {
	case err != nil:
		return err
	case cmd.Hidden:
		return errors.New("there is no such command, only a hint")
	case !cmd.Runnable() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") && rest[0] != "…" && whole:
		return fmt.Errorf("%s has no command %s", cmd.CommandPath(), rest[0])
	}
	cmd.InitDefaultVersionFlag()
	var lacks *pflag.ValueRequiredError
	if err := cmd.ParseFlags(rest); err != nil && !errors.Is(err, pflag.ErrHelp) && (whole || !errors.As(err, &lacks)) {
		return err
	}
	if !whole || !cmd.Runnable() || strings.Contains(line, "…") {
		return nil
	}
	return cmd.ValidateArgs(cmd.Flags().Args())
}
