package request

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/internal/cli/clitest"
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
			got, err := Environment(a, files, tt.flags)
			if err != nil || !maps.Equal(got, tt.want) {
				t.Errorf("got %q, %v, want %q", got, err, tt.want)
			}
		})
	}
}

func TestEnvironmentKeepsSecrets(t *testing.T) {
	a := &target.Env{Term: &term.Term{LookupEnv: clitest.Lookup(nil)}}
	const canary = "s3cr3t-canary"
	_, fileErr := Environment(a, []string{write(t, "A=1\nBAD NAME="+canary+"\n")}, nil)
	_, longErr := Environment(a, []string{write(t, "A="+strings.Repeat(canary, 1<<17))}, nil)
	_, flagErr := Environment(a, nil, []string{"=" + canary})
	_, spaceErr := Environment(a, nil, []string{"BAD NAME=" + canary})
	_, missing := Environment(a, []string{"/nonexistent/env"}, nil)
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
	got, err := Labels([]string{write(t, "team=red\nempty\n")}, []string{"team=blue", "x=a=b"})
	if want := map[string]string{"team": "blue", "empty": "", "x": "a=b"}; err != nil || !maps.Equal(got, want) {
		t.Errorf("got %q, %v", got, err)
	}
	for _, bad := range []string{"=x", "a\x1b=x", "a=\x07", strings.Repeat("k", 300) + "=v"} {
		if _, err := Labels(nil, []string{bad}); sandbox.CodeOf(err) != sandbox.CodeInvalid {
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
