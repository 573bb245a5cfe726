package request

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
)

// maxLine limits a line of an env or label file. A file with longer lines is
// probably something else.
const maxLine = 1 << 20

// Environment gathers variables from files and flags, later ones winning. A
// name without a value takes it from our own environment, and is omitted if it
// is not set there, as with Docker. Errors never contain a value.
func Environment(a *target.Env, files, flags []string) (map[string]string, error) {
	env := map[string]string{}
	for _, file := range files {
		if err := readPairs(file, "env-file", func(line string) error { return setEnv(a, env, line) }); err != nil {
			return nil, err
		}
	}
	for _, flag := range flags {
		if err := setEnv(a, env, flag); err != nil {
			return nil, &sandbox.Error{
				Code: sandbox.CodeInvalid, Subject: "--env", Message: err.Error(), Hint: "write it as NAME=VALUE, or as NAME to pass on your own",
			}
		}
	}
	return env, nil
}

func setEnv(a *target.Env, env map[string]string, pair string) error {
	name, value, given := strings.Cut(pair, "=")
	if name == "" || strings.ContainsAny(name, " \t\x00") {
		return fmt.Errorf("the name of a variable is empty or contains a space")
	}
	if !given {
		if value, given = a.LookupEnv(name); !given {
			return nil
		}
	}
	env[name] = value
	return nil
}

// Labels gathers labels from files and flags, later ones winning. A key
// without a value has an empty one.
func Labels(files, flags []string) (map[string]string, error) {
	out := map[string]string{}
	set := func(pair string) error {
		key, value, _ := strings.Cut(pair, "=")
		out[key] = value
		return sandbox.ValidateLabels(map[string]string{key: value})
	}
	for _, file := range files {
		if err := readPairs(file, "label-file", set); err != nil {
			return nil, err
		}
	}
	for _, flag := range flags {
		if err := set(flag); err != nil {
			return nil, term.BadFlag("label", "%q is not a usable label", flag)
		}
	}
	return out, nil
}

// readPairs calls a function for each line of a file that is neither empty nor
// a comment, in the format of Docker's --env-file. Values are literal,
// including quotes. Errors contain the line's number, not its content.
func readPairs(file, flag string, set func(line string) error) error {
	f, err := os.Open(file)
	if err != nil {
		return term.BadFlag(flag, "%v", err)
	}
	defer f.Close()
	if line, err := eachPair(f, set); err != nil {
		return term.BadFlag(flag, "%s, line %d: %v", file, line, err)
	}
	return nil
}

// eachPair returns the number of the line it could not use.
func eachPair(r io.Reader, set func(line string) error) (int, error) {
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, maxLine)
	n := 0
	for sc.Scan() {
		n++
		line := strings.TrimPrefix(sc.Text(), "\ufeff")
		line = strings.TrimLeft(line, " \t")
		if line == "" || line[0] == '#' {
			continue
		}
		if err := set(line); err != nil {
			return n, err
		}
	}
	return n + 1, sc.Err()
}
