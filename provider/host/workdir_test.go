package host_test

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/host"
	"github.com/atoll-run/atoll/sandbox"
)

// A sandbox of a directory of the user outlives its process, and the directory
// outlives the sandbox.
func TestWorkdir(t *testing.T) {
	dir, work := t.TempDir(), t.TempDir()
	open := func() *host.Provider {
		p, err := host.New(host.Options{Dir: dir, Workdir: work})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	run := func(in driver.Instance, script string) string {
		t.Helper()
		proc, err := in.Exec(t.Context(), &sandbox.Command{Args: []string{"/bin/sh", "-c", script}})
		if err != nil {
			t.Fatal(err)
		}
		defer proc.Close()
		out, _ := io.ReadAll(proc.Stdout())
		if _, err := proc.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	p := open()
	in, err := p.Create(t.Context(), &sandbox.Spec{ID: "box", Env: map[string]string{"A": "b"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := run(in, "pwd; echo one >file"); got != work+"\n" {
		t.Errorf("it works in %q", got)
	}
	background, err := in.Exec(t.Context(), &sandbox.Command{Args: []string{"/bin/sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if x, err := background.Wait(t.Context()); err == nil && x.Code == 0 {
		t.Errorf("its command goes on: %+v", x)
	}
	_ = background.Close()
	p = open()
	if in, err = p.Attach(t.Context(), "box"); err != nil {
		t.Fatal(err)
	}
	if again, err := p.Attach(t.Context(), "box"); err != nil || again != in {
		t.Errorf("a second guest: %v", err)
	}
	if got := run(in, "cat file; echo $A $HOME"); got != "one\nb "+os.Getenv("HOME")+"\n" {
		t.Errorf("%q", got)
	}
	if err := in.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(work, "file")); err != nil {
		t.Error(err)
	}
	if _, err := p.Attach(t.Context(), "box"); sandbox.CodeOf(err) != sandbox.CodeGone {
		t.Errorf("after its end: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}
