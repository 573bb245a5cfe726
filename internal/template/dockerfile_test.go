package template

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

func parse(t *testing.T, text string, args map[string]string) *Description {
	t.Helper()
	d, err := ParseDockerfile(strings.NewReader(text), args)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	for i := range d.Steps {
		d.Steps[i].Line, d.Steps[i].Text = 0, ""
	}
	return d
}

func TestDockerfile(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       Step
	}{
		{"shell form", "RUN echo \"a b\" | wc", Step{Op: OpRun, Shell: `echo "a b" | wc`}},
		{"exec form", `RUN ["/bin/x", "a b"]`, Step{Op: OpRun, Args: []string{"/bin/x", "a b"}}},
		{"a list that is no JSON is a script", `RUN [ -f x ]`, Step{Op: OpRun, Shell: `[ -f x ]`}},
		{"lower case", "run x", Step{Op: OpRun, Shell: "x"}},
		{"continued", "RUN a \\\n  # not this\n\n  && b", Step{Op: OpRun, Shell: "a   && b"}},
		{"here-document", "RUN <<EOF\nset -e\necho $X\nEOF", Step{Op: OpRun, Shell: "set -e\necho $X\n"}},
		{"here-document of a command", "RUN cat <<'E' >f\na\nE", Step{Op: OpRun, Shell: "cat <<'E' >f\na\nE\n"}},
		{"here-document without tabs", "RUN <<-E\n\ta\n\tE", Step{Op: OpRun, Shell: "a\n"}},
		{"copy", "COPY a b /c/", Step{Op: OpCopy, Args: []string{"a", "b", "/c/"}}},
		{"copy with flags", "COPY --chown=u:g --chmod=755 a /c", Step{Op: OpCopy, Args: []string{"a", "/c"}, Chown: "u:g", Chmod: 0o755}},
		{"copy of a list", `COPY ["a b", "/c"]`, Step{Op: OpCopy, Args: []string{"a b", "/c"}}},
		{"copy of quoted names", `COPY "a b" /c`, Step{Op: OpCopy, Args: []string{"a b", "/c"}}},
		{"add of a file", "ADD a /c", Step{Op: OpCopy, Args: []string{"a", "/c"}}},
		{"env", `ENV A=1 B="x y" C='$A'`, Step{Op: OpEnv, Vars: []Var{{"A", "1"}, {"B", "x y"}, {"C", "$A"}}}},
		{"env, the old form", "ENV A b c", Step{Op: OpEnv, Vars: []Var{{"A", "b c"}}}},
		{"label", "LABEL a.b=c", Step{Op: OpLabel, Vars: []Var{{"a.b", "c"}}}},
		{"user", "USER app:app", Step{Op: OpUser, Args: []string{"app:app"}}},
		{"workdir", "WORKDIR /a b", Step{Op: OpWorkdir, Args: []string{"/a b"}}},
		{"cmd", `CMD ["a"]`, Step{Op: OpCmd, Args: []string{"a"}}},
		{"entrypoint", "ENTRYPOINT a b", Step{Op: OpEntrypoint, Shell: "a b"}},
		{"expose", "EXPOSE 80 53/udp", Step{Op: OpExpose, Args: []string{"80", "53/udp"}}},
		{"tabs", "USER\tapp", Step{Op: OpUser, Args: []string{"app"}}},
		{"windows", "USER app\r\n", Step{Op: OpUser, Args: []string{"app"}}},
	} {
		d := parse(t, "FROM x\n"+tc.text+"\n", nil)
		if len(d.Steps) != 1 || !reflect.DeepEqual(d.Steps[0], tc.want) {
			t.Errorf("%s: %+v, want %+v", tc.name, d.Steps, tc.want)
		}
	}
}

func TestDockerfileVariables(t *testing.T) {
	d := parse(t, `# escape=\
ARG BASE=debian:12
FROM $BASE
ARG V=1
ARG W
ENV P=/opt/$V Q=${W:-none} R=${V:+set} S=\$V
WORKDIR ${P}/x
RUN echo $V $UNKNOWN
COPY a${V} $P/
`, map[string]string{"V": "2"})
	if d.From != "debian:12" {
		t.Errorf("from %q", d.From)
	}
	want := []Var{{"P", "/opt/2"}, {"Q", "none"}, {"R", "set"}, {"S", "$V"}}
	if !reflect.DeepEqual(d.Steps[0].Vars, want) {
		t.Errorf("env %v", d.Steps[0].Vars)
	}
	if got := d.Steps[1].Args[0]; got != "/opt/2/x" {
		t.Errorf("workdir %q", got)
	}
	run := d.Steps[2]
	if run.Shell != "echo $V $UNKNOWN" || !reflect.DeepEqual(run.BuildEnv, []Var{{"V", "2"}, {"W", ""}}) {
		t.Errorf("run %+v: the shell expands, not the parser", run)
	}
	if got := d.Steps[3].Args; !reflect.DeepEqual(got, []string{"a2", "/opt/2/"}) {
		t.Errorf("copy %v", got)
	}
	if d := parse(t, "ARG B=x\nFROM $B\n", map[string]string{"B": "y"}); d.From != "y" {
		t.Errorf("from %q with an argument", d.From)
	}
}

func TestDockerfileRefused(t *testing.T) {
	for _, tc := range []struct{ text, says string }{
		{"", "no FROM"},
		{"RUN x", "before FROM"},
		{"FROM x\nFROM y", "multi-stage builds are not supported"},
		{"FROM --platform=arm64 x", "no flags"},
		{"FROM x\nRUN", "without arguments"},
		{"FROM x\nRUN --mount=type=cache,target=/x y", "flags of RUN"},
		{"FROM x\nONBUILD RUN y", "ONBUILD is not supported"},
		{"FROM x\nHEALTHCHECK CMD y", "not supported"},
		{"FROM x\nCOPY --from=y a /b", "--from"},
		{"FROM x\nCOPY a b c", "must end with a slash"},
		{"FROM x\nCOPY ../a /b", "is outside the build files"},
		{"FROM x\nCOPY a/../../b /b", "is outside the build files"},
		{"FROM x\nCOPY a", "at least 2"},
		{"FROM x\nCOPY <<E /b\na\nE", "here-documents"},
		{"FROM x\nADD https://example.com/a /b", "not supported"},
		{"FROM x\nADD a.tar.gz /b", "not supported"},
		{"FROM x\nENV A", "NAME=VALUE"},
		{"FROM x\nENV A='b", "quote"},
		{"FROM x\nRUN <<E\na", "no end"},
		{"FROM x\nARG a-b", "name of an argument"},
		{"FROM x\nUSER \xff", "UTF-8"},
	} {
		_, err := ParseDockerfile(strings.NewReader(tc.text), nil)
		var e *sandbox.Error
		if !errors.As(err, &e) || e.Code != sandbox.CodeInvalid || !strings.Contains(e.Error(), tc.says) {
			t.Errorf("%q: got %v, want invalid that says %q", tc.text, err, tc.says)
		}
	}
	if _, err := ParseDockerfile(strings.NewReader("FROM x"), map[string]string{"A": "b"}); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("an argument that nothing declares: %v", err)
	}
}

func FuzzParseDockerfile(f *testing.F) {
	for _, seed := range []string{
		"FROM x\nRUN <<E\na\nE\nCOPY --chown=a:b [\"a\", \"/b\"]\nENV A=\"b\\\"c\" D=${A:-x}\n", "# escape=`\nFROM x\nRUN a `\n b\n", "FROM $A\\\n", "FROM x\nENV A '\n",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		d, err := ParseDockerfile(strings.NewReader(text), nil)
		if err != nil {
			if sandbox.CodeOf(err) != sandbox.CodeInvalid {
				t.Fatalf("an error without a type: %v", err)
			}
			return
		}
		if err := d.Validate(); err != nil {
			t.Fatalf("what was read is not valid: %v", err)
		}
		for i := range d.Steps {
			if _, err := firstKey("t", "d").next(&d.Steps[i], ""); err != nil {
				t.Fatal(err)
			}
		}
	})
}
