package term

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/sandbox"
)

// Exit codes of Atoll itself. A command's own code is passed on.
const (
	ExitFailure     = 1   // a command of Atoll failed
	ExitUsage       = 2   // wrong usage
	ExitTimeout     = 124 // a command ran out of time, as timeout(1) says
	ExitAtoll       = 125 // run, exec, shell and attach: Atoll failed, not the command
	ExitInterrupted = 130 // as shells say of Ctrl-C
	ExitNotFound    = 127 // the command is not there, as shells say
)

// ExitCode ends the program with a code and without a message, because the
// message was already printed.
type ExitCode int

func (e ExitCode) Error() string { return fmt.Sprintf("exit code %d", int(e)) }

// UsageError is a fault in how a command was called.
type UsageError struct {
	Message string
	Hint    string
}

func (e *UsageError) Error() string { return e.Message }

// Usage returns the error for a flag that a command does not take, with a hint.
func Usage(cmd *cobra.Command, err error) error {
	hint := "see: " + cmd.CommandPath() + " --help"
	if text := err.Error(); text == "unknown flag: --host" || strings.HasPrefix(text, "unknown shorthand flag: 'H'") {
		hint = "name another daemon with: atoll context, or with the variable ATOLL_HOST and a key in ATOLL_KEY" // docker has a flag
	}
	if flag, ok := strings.CutPrefix(err.Error(), "unknown flag: "); ok && dockerFlags[flag] != "" {
		hint = dockerFlags[flag]
	}
	text := err.Error()
	if m := badNumber.FindStringSubmatch(text); m != nil {
		text = fmt.Sprintf("%s: %s is not a whole number", m[2], m[1])
		if m[3] == "value out of range" {
			text = fmt.Sprintf("%s: %s is out of range", m[2], m[1])
		}
	}
	return &UsageError{Message: text, Hint: hint}
}

// badNumber is what the package of the flags says of a number.
var badNumber = regexp.MustCompile(`^invalid argument (".*") for "(?:-., )?(--[^"]*)" flag: strconv\.Parse(?:Int|Uint): parsing .*: (.*)$`)

// dockerFlags maps flags that Atoll lacks, most of docker, to its equivalents.
var dockerFlags = map[string]string{
	"--mem": "the limit of memory is --memory", "--cpu": "the limit of processors is --cpus",
	"--network":    "name the hosts that may be reached with --egress, or a stored profile with --profile; without either there is no network",
	"--net":        "name the hosts that may be reached with --egress, or a stored profile with --profile; without either there is no network",
	"--gpus":       "sandboxes have no GPU",
	"--mount":      "show a file or directory with: --volume HOST:GUEST",
	"--template":   "a template is used as an image: --image template:NAME",
	"--privileged": "nothing is needed: root in a sandbox has no rights outside",
}

// BadFlag reports a flag with an invalid value. The value is omitted if it may
// be a secret.
func BadFlag(flag, format string, args ...any) *sandbox.Error {
	return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: "--" + flag, Message: fmt.Sprintf(format, args...)}
}

// Unreadable reports a local file that cannot be read, and why.
func Unreadable(name string, err error) *sandbox.Error {
	why := err
	var p *fs.PathError
	if errors.As(err, &p) {
		why = p.Err
	}
	code := sandbox.CodeInvalid
	if errors.Is(err, fs.ErrNotExist) {
		code = sandbox.CodeNotFound
	}
	return &sandbox.Error{Code: code, Subject: name, Message: "cannot be read: " + why.Error(), Cause: err}
}

// Interrupted is the error of a command that Ctrl-C or another signal ended.
type Interrupted struct{ Err error }

func (e *Interrupted) Error() string { return e.Err.Error() }
func (e *Interrupted) Unwrap() error { return e.Err }

// Finish says what went wrong, if anything, and returns the exit code.
func (t *Term) Finish(cmd *cobra.Command, err error) int {
	var code ExitCode
	switch {
	case err == nil:
		return 0
	case errors.As(err, &code):
		return int(code)
	case readerGone(err):
		return 128 + int(syscall.SIGPIPE) // as of other tools, which that signal kills
	}
	t.Report(cmd, err)
	var i *Interrupted
	if errors.As(err, &i) {
		return ExitInterrupted
	}
	if runsCommands(cmd) {
		return ExitAtoll
	}
	if isUsage(err) {
		return ExitUsage
	}
	return ExitFailure
}

// readerGone reports whether the reader of our standard output has exited, as
// head(1) does.
func readerGone(err error) bool {
	var p *fs.PathError
	return errors.As(err, &p) && p.Path == os.Stdout.Name() && errors.Is(p.Err, syscall.EPIPE)
}

// runsCommands reports whether a command passes on the exit code of a command.
func runsCommands(cmd *cobra.Command) bool {
	return cmd != nil && cmd.Annotations["runs"] != ""
}

// isUsage reports whether a command was called wrongly. Cobra's own complaints
// about words and flags have no type.
func isUsage(err error) bool {
	var u *UsageError
	text := err.Error()
	return errors.As(err, &u) || strings.HasPrefix(text, "accepts ") || strings.HasPrefix(text, "requires ") || complaint(text) != text
}

// Report writes an error and its hint as text or, with --json, as an object on
// one line. Only the text contains the usage of the command.
func (t *Term) Report(cmd *cobra.Command, err error) {
	if wantsJSON(cmd) && !isUsage(err) {
		_ = WriteJSON(t.Stderr, map[string]*sandbox.Error{"error": Typed(err)}, "")
		return
	}
	text, hint := Explain(err)
	if own := wrongWords(cmd, err); own != "" {
		text = own
	}
	if hint == "" && cmd != nil && isUsage(err) {
		hint = "see: " + cmd.CommandPath() + " --help"
	}
	t.SayLines("error", text)
	if hint != "" {
		t.SayLines("hint", hint)
	}
}

// wantsJSON reports whether --json was set.
func wantsJSON(cmd *cobra.Command) bool {
	if cmd == nil || cmd.Flags().Lookup("json") == nil {
		return false
	}
	asked, err := cmd.Flags().GetBool("json")
	return err == nil && asked
}

// Typed returns an error in its JSON form.
func Typed(err error) *sandbox.Error {
	var e *sandbox.Error
	if errors.As(err, &e) {
		return e
	}
	return &sandbox.Error{Code: sandbox.CodeOf(err), Message: err.Error()}
}

// Say writes one line of prose to standard error.
func (t *Term) Say(kind, text string) { t.SayLines(kind, inline(text)) }

// SayLines writes prose, which may have several lines, to standard error.
func (t *Term) SayLines(kind, text string) {
	color := map[string]string{"error": Red, "warning": Yellow, "hint": Cyan}[kind]
	t.Notef("atoll: %s %s\n", t.Paint(t.Stderr, color, kind+":"), Painted(Visible(text)))
}

// Explain returns the text of an error without the names of inner operations,
// and its hint.
func Explain(err error) (text, hint string) {
	var e *sandbox.Error
	var u *UsageError
	switch {
	case errors.As(err, &e):
		shown := *e
		shown.Op = ""
		return shown.Error(), e.Hint
	case errors.As(err, &u):
		return u.Message, u.Hint
	}
	return complaint(err.Error()), ""
}

// Clearer texts for cobra's errors.
var (
	exclusive   = regexp.MustCompile(`^if any flags in the group .*; \[(.*)\] were all set$`)
	missingFlag = regexp.MustCompile(`^required flag\(s\) "(.*)" not set$`)
	surplus     = regexp.MustCompile(`^unknown command (".*") for ("atoll .*")$`)
)

// Cobra's complaints about the number of words.
var (
	tooFew  = regexp.MustCompile(`^(?:accepts (?:between )?([0-9]+).*, received ([0-9]+)|requires at least ([0-9]+) arg\(s\), only received ([0-9]+))$`)
	tooMany = regexp.MustCompile(`^accepts (?:at most )?(?:[0-9]+ and )?([0-9]+) arg\(s\), received ([0-9]+)$`)
	between = regexp.MustCompile(`^accepts between ([0-9]+) and ([0-9]+) arg\(s\), received ([0-9]+)$`)
)

// wrongWords says which arguments are missing or superfluous, with the names in
// the command's usage. Empty: the error is about something else.
func wrongWords(cmd *cobra.Command, err error) string {
	if cmd == nil {
		return ""
	}
	text := err.Error()
	var least, most, got int
	switch {
	case between.MatchString(text):
		m := between.FindStringSubmatch(text)
		least, most, got = atoi(m[1]), atoi(m[2]), atoi(m[3])
	case tooMany.MatchString(text):
		m := tooMany.FindStringSubmatch(text)
		if least, most, got = atoi(m[1]), atoi(m[1]), atoi(m[2]); strings.Contains(text, "at most") {
			least = 0
		}
	case tooFew.MatchString(text):
		m := tooFew.FindStringSubmatch(text)
		least, most, got = atoi(m[3]), int(^uint(0)>>1), atoi(m[4])
	default:
		return ""
	}
	needed := neededWords(cmd.Use)
	switch {
	case got > most:
		return fmt.Sprintf("%s takes %s, not %d", cmd.CommandPath(), counted(least, most), got)
	case got < least && got < len(needed):
		return cmd.CommandPath() + ": " + needed[got] + " is missing"
	}
	return ""
}

// neededWords returns the words in a usage line, without flags and without those
// that may be left out.
func neededWords(use string) (words []string) {
	for _, w := range strings.Fields(use)[1:] {
		if w == "|" {
			break // the other form has as many
		}
		optional := strings.HasPrefix(w, "[") && strings.HasSuffix(strings.TrimSuffix(w, "..."), "]")
		if !optional && !strings.HasPrefix(w, "-") {
			words = append(words, strings.TrimSuffix(w, "..."))
		}
	}
	return words
}

// counted says how many arguments there may be.
func counted(least, most int) string {
	count := fmt.Sprintf("%d arguments", most)
	if most == 1 {
		count = "1 argument"
	}
	switch {
	case least == 0:
		return "at most " + count
	case least < most:
		return fmt.Sprintf("%d to %s", least, count)
	}
	return count
}

func atoi(text string) int {
	n, _ := strconv.Atoi(text)
	return n
}

func complaint(text string) string {
	if m := missingFlag.FindStringSubmatch(text); m != nil {
		return "--" + strings.ReplaceAll(m[1], `", "`, " and --") + " is missing"
	}
	if m := exclusive.FindStringSubmatch(text); m != nil {
		return "--" + strings.Join(strings.Fields(m[1]), " and --") + " cannot be used together"
	}
	if m := surplus.FindStringSubmatch(text); m != nil {
		return strings.Trim(m[2], `"`) + " takes no arguments, and was given " + m[1]
	}
	return text
}
