package cli

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/internal/cli/clitest"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
)

func write(t *testing.T, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestEnvironment(t *testing.T) {
	a := &target.Env{Term: &term.Term{LookupEnv: clitest.Lookup(map[string]string{"OWN": "mine", "EMPTY": ""})}}
	tests := []struct {
		name  string
		file  string
		flags []string
		want  map[string]string
	}{
		{"a value", "", []string{"A=1"}, map[string]string{"A": "1"}},
		{"an empty value", "", []string{"A="}, map[string]string{"A": ""}},
		{"a value with everything", "", []string{"A= b=c\n\"'$x"}, map[string]string{"A": " b=c\n\"'$x"}},
		{"our own", "", []string{"OWN", "EMPTY"}, map[string]string{"OWN": "mine", "EMPTY": ""}},
		{"not ours", "", []string{"NOPE"}, map[string]string{}},
		{"later flags win", "", []string{"A=1", "A=2"}, map[string]string{"A": "2"}},
		{"flags win over files", "A=file\nB=file\n", []string{"A=flag"}, map[string]string{"A": "flag", "B": "file"}},
		{"comments and spaces", "# A=1\n\n  B=2 # not a comment\n\tC=\"quoted\"\r\nOWN\nNOPE", nil, map[string]string{"B": "2 # not a comment", "C": `"quoted"`, "OWN": "mine"}},
		{"a byte order mark", "\ufeffA=1", nil, map[string]string{"A": "1"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var files []string
			if tt.file != "" {
				files = []string{write(t, tt.file)}
			}
			got, err := environment(a, files, tt.flags)
			if err != nil || !maps.Equal(got, tt.want) {
				t.Errorf("got %q, %v, want %q", got, err, tt.want)
			}
		})
	}
}

func TestEnvironmentKeepsSecrets(t *testing.T) {
	a := &target.Env{Term: &term.Term{LookupEnv: clitest.Lookup(nil)}}
	const canary = "s3cr3t-canary"
	_, fileErr := environment(a, []string{write(t, "A=1\nBAD NAME="+canary+"\n")}, nil)
	_, longErr := environment(a, []string{write(t, "A="+strings.Repeat(canary, 1<<17))}, nil)
	_, flagErr := environment(a, nil, []string{"=" + canary})
	_, spaceErr := environment(a, nil, []string{"BAD NAME=" + canary})
	_, missing := environment(a, []string{"/nonexistent/env"}, nil)
	for _, err := range []error{fileErr, longErr, flagErr, spaceErr, missing} {
		text, hint := term.Explain(err)
		if sandbox.CodeOf(err) != sandbox.CodeInvalid || strings.Contains(text+hint, canary) {
			t.Errorf("%q %q", text, hint)
		}
	}
	if text, _ := term.Explain(fileErr); !strings.Contains(text, "line 2") {
		t.Errorf("%q does not name the line", text)
	}
}

func FuzzEachPair(f *testing.F) {
	f.Add("A=1\n# x\nB\n")
	f.Add("\ufeff =\x00\n\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		a := &target.Env{Term: &term.Term{LookupEnv: clitest.Lookup(nil)}}
		env := map[string]string{}
		_, _ = eachPair(strings.NewReader(text), func(line string) error {
			if strings.ContainsRune(line, '\n') || line == "" || line[0] == '#' {
				t.Errorf("not a pair: %q", line)
			}
			return setEnv(a, env, line)
		})
		for name := range env {
			if name == "" || strings.ContainsAny(name, "=\n \t\x00") {
				t.Errorf("variable %q", name)
			}
		}
	})
}

func TestLabels(t *testing.T) {
	got, err := labels([]string{write(t, "team=red\nempty\n")}, []string{"team=blue", "x=a=b"})
	if want := map[string]string{"team": "blue", "empty": "", "x": "a=b"}; err != nil || !maps.Equal(got, want) {
		t.Errorf("got %q, %v", got, err)
	}
	for _, bad := range []string{"=x", "a\x1b=x", "a=\x07", strings.Repeat("k", 300) + "=v"} {
		if _, err := labels(nil, []string{bad}); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestVolume(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.Mkdir("data", 0o700); err != nil {
		t.Fatal(err)
	}
	good := map[string]sandbox.Mount{
		dir + ":/data":      {Source: dir, Target: "/data"},
		"data:/data:ro":     {Source: dir + "/data", Target: "/data", ReadOnly: true},
		"./data/..:/x/y:rw": {Source: dir, Target: "/x/y"},
	}
	for text, want := range good {
		if got, err := volume(text); err != nil || got != want {
			t.Errorf("%s: got %+v, %v, want %+v", text, got, err, want)
		}
	}
	for _, bad := range []string{"", "data", ":", "data:", ":/data", "data:/d:rx", "data:/d:ro:x", "data:d", "missing:/d", "da\x00ta:/d"} {
		_, err := volume(bad)
		if text, hint := term.Explain(err); sandbox.CodeOf(err) != sandbox.CodeInvalid || hint == "" {
			t.Errorf("%q: %q, hint %q", bad, text, hint)
		}
	}
}

func FuzzVolume(f *testing.F) {
	f.Add("/:/data:ro")
	f.Add("a:b:c:d")
	f.Fuzz(func(t *testing.T, text string) {
		m, err := volume(text)
		if err != nil {
			return
		}
		if !filepath.IsAbs(m.Source) || !strings.HasPrefix(m.Target, "/") || strings.Contains(m.Target, ":") {
			t.Errorf("%q became %+v", text, m)
		}
	})
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{"512m": 512 << 20, "2g": 2 << 30, "1.5GiB": 3 << 29, "1024": 1024, "64K": 64 << 10} {
		var s resource.SizeFlag
		if err := s.Set(text); err != nil || int64(s) != want {
			t.Errorf("%s: %d, %v", text, s, err)
		}
	}
	for _, bad := range []string{"", "x", "-1", "0", "1e400", "99999999999g", "1 giant"} {
		var s resource.SizeFlag
		if err := s.Set(bad); err == nil {
			t.Errorf("%q became %d", bad, s)
		}
	}
}

func FuzzSize(f *testing.F) {
	f.Add("1.5g")
	f.Fuzz(func(t *testing.T, text string) {
		var s resource.SizeFlag
		if s.Set(text) == nil && s <= 0 {
			t.Errorf("%q became %d", text, s)
		}
	})
}

func TestDurations(t *testing.T) {
	for text, want := range map[string]string{"30s": "30s", "5m": "5m0s", "7": "7s", "1h30m": "1h30m0s"} {
		var d resource.DurationFlag
		if err := d.Set(text); err != nil || d.String() != want {
			t.Errorf("%s: %s, %v", text, d.String(), err)
		}
	}
	for _, bad := range []string{"", "-1s", "0", "x", "1y", "99999999999"} {
		var d resource.DurationFlag
		if err := d.Set(bad); err == nil {
			t.Errorf("%q became %s", bad, d.String())
		}
	}
}

func TestSignals(t *testing.T) {
	for text, want := range map[string]int{"TERM": 15, "sigterm": 15, "9": 9, "SIGUSR1": 10, "64": 64} {
		if got, err := parseSignal(text); err != nil || got != want {
			t.Errorf("%s: %d, %v", text, got, err)
		}
	}
	for _, bad := range []string{"", "0", "-9", "65", "NOPE", "SIG"} {
		if got, err := parseSignal(bad); err == nil {
			t.Errorf("%q became %d", bad, got)
		}
	}
}

func TestSplitPlace(t *testing.T) {
	for text, want := range map[string][2]string{
		"demo:/tmp": {"demo", "/tmp"}, "demo:": {"demo", ""}, "./a:b": {"", "./a:b"}, "/a:b": {"", "/a:b"},
		"file": {"", "file"}, "-": {"", "-"}, "Demo:/x": {"", "Demo:/x"}, "demo:a:b": {"demo", "a:b"},
	} {
		if box, p := splitPlace(text); box != want[0] || p != want[1] {
			t.Errorf("%s: %q %q", text, box, p)
		}
	}
	for p, want := range map[string]string{"": "/", "..": "/", "/a/../../b": "/b", "a/b": "/a/b"} {
		if got := inside(p); got != want {
			t.Errorf("inside(%q) is %q", p, got)
		}
	}
}
