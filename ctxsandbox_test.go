package atoll_test

import (
	"context"
	"errors"
	"io"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/sandbox"
)

// TestCtxSandbox does everything that docs/reference/ctx-sandbox.md names, in its order.
func TestCtxSandbox(t *testing.T) {
	c, ctx := client(t), t.Context()
	var s *atoll.Sandbox
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	background := ""
	for _, row := range []struct {
		there string
		do    func()
	}{
		{"create", func() {
			var err error
			s, err = c.Create(ctx, sandbox.Spec{
				Name: "ctx", Labels: map[string]string{"run": "7"}, Resources: sandbox.Resources{Memory: 256 << 20, CPUs: 0.5},
			}, atoll.CreateOptions{})
			must(err)
		}},
		{"get", func() {
			got, err := c.Get(ctx, "ctx")
			must(err)
			if got.ID() != s.ID() || got.Info().Resources.Memory != 256<<20 {
				t.Errorf("%+v", got.Info())
			}
		}},
		{"list", func() {
			for info, err := range c.List(ctx, atoll.ListOptions{Labels: map[string]string{"run": "7"}}) {
				must(err)
				if info.ID != s.ID() {
					t.Errorf("%+v", info)
				}
			}
		}},
		{"exec", func() {
			res, err := s.Run(ctx, sandbox.Command{Args: []string{"echo", "a b"}, Timeout: time.Minute}, atoll.RunOptions{})
			must(err)
			if string(res.Stdout) != "a b\n" {
				t.Errorf("%+v", res)
			}
			res, err = s.Run(ctx, sandbox.Command{Args: []string{"sleep", "600"}, Timeout: 10 * time.Millisecond}, atoll.RunOptions{})
			must(err)
			if res.Exit.Reason != sandbox.ReasonTimeout {
				t.Errorf("%+v", res)
			}
		}},
		{"shell, truncated output", func() {
			res, err := s.Run(ctx, sandbox.Command{Shell: "echo 12345; exit 3"}, atoll.RunOptions{OutputLimit: 2})
			must(err)
			if !res.Truncated || string(res.Stdout) != "12" || res.Exit.Code != 3 {
				t.Errorf("%+v", res)
			}
		}},
		{"logs", func() {
			p, err := s.Exec(ctx, sandbox.Command{Shell: "echo one; echo two; sleep 600", Background: true})
			must(err)
			background = p.Info().ID
			out := make([]byte, len("one\ntwo\n"))
			_, err = io.ReadFull(p.Stdout(), out)
			must(err)
			must(p.Close())
			logs, err := s.Logs(ctx, background, atoll.LogOptions{Tail: 1})
			must(err)
			defer logs.Close()
			chunk, err := logs.Next()
			must(err)
			if string(chunk.Data) != "two\n" {
				t.Errorf("%q", chunk.Data)
			}
		}},
		{"kill", func() { must(s.Kill(ctx, background, 9)) }},
		{"stop", func() {
			info, err := s.Stop(ctx, time.Second)
			must(err)
			if info.State != sandbox.Stopped {
				t.Errorf("%+v", info)
			}
		}},
		{"remove", func() {
			must(c.Remove(ctx, "ctx"))
			must(s.Destroy(ctx))
		}},
		{"run_shell", func() {
			res, err := c.RunShell(ctx, "echo $((6*7))", atoll.OneShot{Timeout: time.Minute})
			must(err)
			if string(res.Stdout) != "42\n" {
				t.Errorf("%+v", res)
			}
		}},
		{"guaranteed teardown", func() {
			_, err := c.RunPython(ctx, "print(1)", atoll.OneShot{}) // this provider has no python3: the command ends with 127
			must(err)
			canceled, cancel := context.WithCancel(ctx)
			time.AfterFunc(20*time.Millisecond, cancel)
			if _, err := c.RunShell(canceled, "sleep 600", atoll.OneShot{}); !errors.Is(err, &sandbox.Error{Code: sandbox.CodeCanceled}) {
				t.Errorf("%v", err)
			}
			for info, err := range c.List(ctx, atoll.ListOptions{}) {
				t.Errorf("%s was left: %v", info.Name, err)
			}
		}},
		{"unavailable", func() {
			none, err := atoll.New(atoll.Options{Host: "unix://" + t.TempDir() + "/none.sock"})
			must(err)
			defer none.Close()
			_, err = none.RunShell(ctx, "true", atoll.OneShot{})
			wantCode(t, err, sandbox.CodeUnavailable)
		}},
	} {
		t.Run(row.there, func(*testing.T) { row.do() })
	}
}

// What the page names exists.
func TestCtxSandboxPage(t *testing.T) {
	text, err := os.ReadFile("docs/reference/ctx-sandbox.md")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]reflect.Type{
		"Client": reflect.TypeFor[*atoll.Client](), "Sandbox": reflect.TypeFor[*atoll.Sandbox](),
		"Spec": reflect.TypeFor[sandbox.Spec](), "Result": reflect.TypeFor[atoll.Result](), "Command": reflect.TypeFor[sandbox.Command](),
	}
	named := regexp.MustCompile("`((?:"+strings.Join([]string{"Client", "Sandbox", "Spec", "Result", "Command"}, "|")+`)\.\w+)`+"`").FindAllStringSubmatch(string(text), -1)
	if len(named) < 15 {
		t.Fatalf("found only %v", named)
	}
	for _, m := range named {
		kind, member, _ := strings.Cut(m[1], ".")
		_, method := kinds[kind].MethodByName(member)
		field := kinds[kind].Kind() == reflect.Struct
		if field {
			_, field = kinds[kind].FieldByName(member)
		}
		if !method && !field {
			t.Errorf("there is no %s", m[1])
		}
	}
}
