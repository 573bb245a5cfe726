package code

import (
	"fmt"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/coding"
)

func TestSearches(t *testing.T) {
	t.Parallel()
	dir := project(t, map[string]string{
		"main.go": "package main\n\nfunc Main() {}\r\n", "src/a/x.go": "// main.x\n", "src/x.txt": "Main", "bin": "main\x00", ".git/config": "main", "a/node_modules/m.go": "main",
		"long": strings.Repeat("ä", 5000) + "needle" + strings.Repeat("x", 5000), "large": strings.Repeat("main\n", 1<<20),
	})
	for _, c := range []struct {
		req  coding.SearchRequest
		want string
	}{
		{coding.SearchRequest{Name: "*.go"}, "main.go src/a/x.go"},
		{coding.SearchRequest{Name: "src/**/*.go"}, "src/a/x.go"},
		{coding.SearchRequest{Name: "/src/*"}, "src/a src/x.txt"},
		{coding.SearchRequest{Name: "*.go", Exclude: []string{}}, "a/node_modules/m.go main.go src/a/x.go"},
		{coding.SearchRequest{Content: "main"}, "main.go:1:9 src/a/x.go:1:4"},
		{coding.SearchRequest{Content: "^func \\w+\\(\\) \\{\\}$"}, "main.go:3:1"},
		{coding.SearchRequest{Content: "main", IgnoreCase: true, Name: "*.{go,txt}"}, "main.go:1:9 main.go:3:6 src/a/x.go:1:4 src/x.txt:1:1"},
		{coding.SearchRequest{Content: "main.x", Literal: true}, "src/a/x.go:1:4"},
		{coding.SearchRequest{Content: "MAIN()", Literal: true, IgnoreCase: true}, "main.go:3:6"},
		{coding.SearchRequest{Content: "needle"}, "long:1:10001"},
	} {
		c.req.Path = dir
		out, err := service(&local{}).Search(t.Context(), "x", c.req)
		if err != nil {
			t.Errorf("%+v: %v", c.req, err)
			continue
		}
		var got []string
		for _, m := range out.Matches {
			if m.Line == 0 {
				got = append(got, m.Path)
				continue
			}
			if got = append(got, fmt.Sprintf("%s:%d:%d", m.Path, m.Line, m.Column)); len(m.Text) > maxMatchText || strings.Contains(m.Text, "\uFFFD") {
				t.Errorf("%+v: text %q", c.req, m.Text)
			}
		}
		if strings.Join(got, " ") != c.want || out.Truncated {
			t.Errorf("%+v: %q, want %q", c.req, strings.Join(got, " "), c.want)
		}
		if c.req.Content == "main" && c.req.Name == "" && out.Skipped != 1 {
			t.Errorf("%d large files were skipped", out.Skipped)
		}
	}
	if out, err := service(&local{}).Search(t.Context(), "x", coding.SearchRequest{Path: dir, Content: "a", Max: 1}); err != nil || len(out.Matches) != 1 || !out.Truncated {
		t.Errorf("a limit: %+v, %v", out, err)
	}
	for name, req := range map[string]coding.SearchRequest{
		"nothing": {Path: dir}, "expression": {Path: dir, Content: "("}, "pattern": {Path: dir, Name: "["}, "exclude": {Path: dir, Name: "x", Exclude: []string{"a/b"}}, "path": {Path: "x", Name: "x"},
	} {
		if _, err := service(&local{}).Search(t.Context(), "x", req); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := service(&local{}).Search(t.Context(), "x", coding.SearchRequest{Path: dir + "/none", Content: "x"}); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("no directory: %v", err)
	}
}
