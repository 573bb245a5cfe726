package term

import (
	"io"
	"os"
)

// Term is the terminal, or what stands for it: the streams and the environment of
// one run of the command line.
type Term struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	LookupEnv      func(string) (string, bool)
}

// Warn says it, unless there is nothing to say.
func (t *Term) Warn(warning string) {
	if warning != "" {
		t.Say("warning", warning)
	}
}

// Terminal returns the terminal we were called from, nil without one.
func (t *Term) Terminal() *os.File {
	for _, stream := range []any{t.Stdin, t.Stdout, t.Stderr} {
		if IsTerminal(stream) {
			return stream.(*os.File)
		}
	}
	return nil
}
