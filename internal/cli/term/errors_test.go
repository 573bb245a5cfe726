package term

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/sandbox"
)

// Who cannot read a file is told why.
func TestUnreadable(t *testing.T) {
	_, missing := os.Open(filepath.Join(t.TempDir(), "missing"))
	for _, c := range []struct {
		err  error
		code sandbox.Code
		text string
	}{
		{missing, sandbox.CodeNotFound, "x: cannot be read: no such file or directory"},
		{&fs.PathError{Op: "open", Path: "x", Err: fs.ErrPermission}, sandbox.CodeInvalid, "x: cannot be read: permission denied"},
		{context.Canceled, sandbox.CodeInvalid, "x: cannot be read: context canceled"},
	} {
		e := Unreadable("x", c.err)
		if text, _ := Explain(e); e.Code != c.code || text != c.text {
			t.Errorf("%v: %s %q", c.err, e.Code, text)
		}
	}
}

func TestFinishInterrupted(t *testing.T) {
	for _, annotations := range []map[string]string{nil, {"runs": "yes"}} {
		var said bytes.Buffer
		tm := &Term{Stderr: &said, Stdout: &said, LookupEnv: func(string) (string, bool) { return "", false }}
		cmd := &cobra.Command{Annotations: annotations}
		if code := tm.Finish(cmd, &Interrupted{Err: context.Canceled}); code != ExitInterrupted || !strings.Contains(said.String(), "canceled") {
			t.Errorf("%v: %d %q", annotations, code, said.String())
		}
	}
}
