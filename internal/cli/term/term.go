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
func (a *Term) Warn(warning string) {
	if warning != "" {
		a.Say("warning", warning)
	}
}

// Terminal returns the terminal we were called from, nil without one.
func (a *Term) Terminal() *os.File {
	for _, stream := range []any{a.Stdin, a.Stdout, a.Stderr} {
		if IsTerminal(stream) {
			return stream.(*os.File)
		}
	}
	return nil
}
