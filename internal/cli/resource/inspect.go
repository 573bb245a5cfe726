package resource

import (
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
)

// Inspect shows what get finds, and says of each rest why it could not.
func Inspect[T any](a *target.Env, format string, names []string, get func(name string) (T, error)) error {
	found, failed := []T{}, false
	for _, name := range names {
		s, err := get(name)
		if err != nil {
			failed = true
			a.Report(nil, err)
			continue
		}
		found = append(found, s)
	}
	var err error
	if format == "" {
		err = a.PrintJSON(found)
	} else if len(found) > 0 {
		err = term.Formatted(a.Term, format, found)
	}
	if err == nil && failed {
		return term.ExitCode(term.ExitFailure)
	}
	return err
}
