package e2bapi

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/atoll-run/atoll/internal/template"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// order describes a build.
type order struct {
	ID   string   // a UUID
	Name string   // of the template
	Tags []string // at least one
	From string   // image or template, as sandbox.Spec.Image
	User string   // runs steps that name no user; empty: the user of From
	// MakeUser makes the user "user" first, if the image has none.
	MakeUser bool
	Steps    []buildStep
	Start    string // command that runs in its sandboxes
	Ready    string // command that succeeds when Start is ready
	Force    bool
	CPUs     float64
	Memory   int64 // bytes
	Network  sandbox.Network
	// Login returns the credentials for the registry of From; nil: none. It is a
	// function so that no value that could be logged or stored contains them.
	Login func() (username, password string)
	// Region, if set, is an AWS region; Login then returns keys of AWS.
	Region string
}

// buildStep is one step in the client's format.
type buildStep struct {
	Type      string   `json:"type"`
	Args      []string `json:"args"`
	FilesHash string   `json:"filesHash"`
	Force     bool     `json:"force"`
}

// build unpacks the files of every step into a private directory, and builds.
func (h *buildAPI) build(ctx context.Context, b *order, tell func(durable.BuildEvent)) error {
	dir, err := os.MkdirTemp(h.opts.Builds, "")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	d, numbers, err := h.describe(ctx, root, b)
	if err != nil {
		return err
	}
	d.Start, d.Ready = loginScript(b.Start), loginScript(b.Ready)
	if d.Start == "" && d.Ready != "" {
		d.Start = "true" // the build waits for Ready even if nothing is started
	}
	files, err := template.NewFiles(root)
	if err != nil {
		return err
	}
	first := b.Name + ":" + b.Tags[0]
	_, err = h.services.Builder.BuildTemplate(ctx, template.NamedRequest{
		Name: first, Description: d, Files: files, NoCache: b.Force, Login: b.Login, Network: b.Network, Build: b.ID, CPUs: b.CPUs, Memory: b.Memory,
		Log: func(e durable.BuildEvent) {
			text, step := e.Text, numberOf(numbers, e.Step)
			if !e.Output && step > 0 {
				text = fmt.Sprintf("[%d/%d] %s%s", step, len(b.Steps), map[bool]string{true: "CACHED "}[e.Cached], e.Text)
			}
			tell(durable.BuildEvent{Time: e.Time, Step: step, Text: text, Output: e.Output})
		},
	})
	for _, tag := range b.Tags[1:] {
		if err == nil {
			_, err = h.services.Templates.TagTemplate(ctx, first, b.Name+":"+tag)
		}
	}
	return err
}

// describe returns the steps of a build, and for each the number of the client's
// step that it belongs to, or 0.
func (h *buildAPI) describe(ctx context.Context, root *os.Root, b *order) (d *template.Description, numbers []int, err error) {
	d = &template.Description{From: b.From}
	add := func(number int, steps ...template.Step) {
		for _, step := range steps {
			d.Steps, numbers = append(d.Steps, step), append(numbers, number)
		}
	}
	if b.MakeUser {
		add(0, makingUser(defaultUser))
	}
	if b.User != "" {
		add(0, template.Step{Op: template.OpUser, Args: []string{b.User}}, template.Step{Op: template.OpWorkdir, Args: []string{"/home/" + b.User}})
	}
	for i := range b.Steps {
		step, err := h.step(ctx, root, i, &b.Steps[i])
		if err != nil {
			return nil, nil, err
		}
		if step.Op == template.OpUser && len(step.Args) > 0 && mayMake(step.Args[0]) {
			add(i+1, makingUser(step.Args[0]))
		}
		add(i+1, *step)
	}
	return d, numbers, nil
}

// makingUser returns a step that makes a user if the image lacks it.
func makingUser(name string) template.Step {
	return template.Step{Op: template.OpRun, Args: userCommand(name), User: "root", Text: "make the user " + name}
}

// numberOf returns the number of the client's step that an event of the builder
// is about. Steps of the builder count from 1; after the last one come the
// start command and the snapshot.
func numberOf(numbers []int, step int) int {
	if step = min(step, len(numbers)); step < 1 {
		return 0
	}
	return numbers[step-1]
}

// loginScript returns a script that runs a command as clients run theirs.
func loginScript(command string) string {
	if command == "" {
		return ""
	}
	return "export E2B_SANDBOX=true; exec /bin/bash -l -c '" + strings.ReplaceAll(command, "'", `'\''`) + "'"
}

// step translates a step for the builder.
func (h *buildAPI) step(ctx context.Context, root *os.Root, i int, from *buildStep) (*template.Step, error) {
	bad := func(format string, args ...any) error {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "template.build", Subject: fmt.Sprintf("step %d", i+1), Message: fmt.Sprintf(format, args...)}
	}
	arg := func(n int) string {
		if n < len(from.Args) {
			return from.Args[n]
		}
		return ""
	}
	step := &template.Step{Force: from.Force, Text: strings.TrimSpace(from.Type + " " + strings.Join(from.Args, " "))}
	switch kind := strings.ToUpper(from.Type); kind {
	case "RUN":
		step.Op, step.Args, step.User = template.OpRun, []string{"/bin/bash", "-l", "-c", arg(0)}, arg(1)
	case "USER", "WORKDIR":
		step.Op, step.Args = template.Op(strings.ToLower(kind)), from.Args
	case "ENV", "ARG":
		step.Op = template.OpEnv
		for pair := range slices.Chunk(from.Args, 2) {
			if len(pair) != 2 {
				return nil, bad("a variable has no value")
			}
			step.Vars = append(step.Vars, template.Var{Name: pair[0], Value: pair[1]})
		}
		step.Text = "" // the log does not show values
	case "COPY", "ADD":
		sub := strconv.Itoa(i)
		if err := h.unpack(ctx, root, sub, from.FilesHash); err != nil {
			return nil, err
		}
		if src := filepath.ToSlash(filepath.Clean(arg(0))); !filepath.IsLocal(src) {
			return nil, bad("%.80q leads out of the files", arg(0))
		}
		step.Op, step.Args, step.Chown, step.AsUser = template.OpCopy, []string{sub + "/" + arg(0), arg(1)}, arg(2), true
		step.Keep = true
		if mode := arg(3); mode != "" {
			bits, err := strconv.ParseUint(mode, 8, 12)
			if err != nil {
				return nil, bad("%.20q is not a mode", mode)
			}
			step.Chmod = uint32(bits)
		}
	default:
		return nil, bad("%.20q is not a type of step", from.Type)
	}
	return step, nil
}

// unpack writes uploaded files to a directory of a build.
func (h *buildAPI) unpack(ctx context.Context, root *os.Root, sub, hash string) error {
	path, err := h.uploads.path(tenantOf(ctx), hash)
	if err != nil {
		return err
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "template.build", Subject: "files", Message: "the files of a step were not uploaded, or are too old"}
	}
	if err != nil {
		return err
	}
	defer f.Close()
	in := bufio.NewReader(f)
	tar := io.Reader(in)
	if magic, _ := in.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(in)
		if err != nil {
			return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "template.build", Subject: "files", Message: "are not a usable tar", Cause: err}
		}
		tar = z
	}
	if err := root.Mkdir(sub, 0o755); err != nil {
		return err
	}
	below, err := root.OpenRoot(sub)
	if err != nil {
		return err
	}
	defer below.Close()
	return template.Unpack(ctx, tar, below)
}
