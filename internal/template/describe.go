// Package template builds templates: images built step by step from a
// description, in ordinary sandboxes. Every step is cached by its inputs.
//
// A step is identified by a key: the hash of the previous step's key, of the
// step itself, and of the files it copies. A step whose key is in the cache is
// not run again, so a build runs only the first changed step and those after
// it. Keys include the tenant: cached steps are not shared between tenants.
package template

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/atoll-run/atoll/sandbox"
)

// Op is the operation of a step.
type Op string

// The operations, with their names in a Dockerfile.
const (
	OpRun        Op = "run"
	OpCopy       Op = "copy"
	OpEnv        Op = "env"
	OpUser       Op = "user"
	OpWorkdir    Op = "workdir"
	OpLabel      Op = "label"
	OpCmd        Op = "cmd"
	OpEntrypoint Op = "entrypoint"
	OpExpose     Op = "expose"
	OpStopSignal Op = "stopsignal"
)

// Step is one step of a build. Which fields it uses depends on its operation.
type Step struct {
	Op Op `json:"op"`
	// Args are: the arguments of run, cmd and entrypoint; the sources and the
	// destination of copy; the ports of expose; the value of user, workdir and
	// stopsignal.
	Args []string `json:"args,omitempty"`
	// Shell is the script of run, cmd and entrypoint, instead of Args.
	Shell string `json:"shell,omitempty"`
	// User is the user of run, instead of the image's.
	User string `json:"user,omitempty"`
	// Vars are the variables of env and label, in order.
	Vars []Var `json:"vars,omitempty"`
	// BuildEnv are build arguments, which run sees in its environment but which
	// are not stored in the image.
	BuildEnv []Var `json:"buildEnv,omitempty"`
	// Chown is the owner of copied files, "user[:group]"; empty: root.
	Chown string `json:"chown,omitempty"`
	// AsUser makes the image's user the owner of copied files, if Chown is empty.
	AsUser bool `json:"asUser,omitempty"`
	// Keep makes copy work like mv: files and directories that match a pattern are
	// placed in the destination, and symbolic links are kept.
	Keep bool `json:"keep,omitempty"`
	// Chmod are the permission bits of copied files; 0: as in the source.
	Chmod uint32 `json:"chmod,omitempty"`
	// Force runs the step even if it is cached.
	Force bool `json:"force,omitempty"`
	// Line is the first line of the step in a Dockerfile.
	Line int `json:"line,omitempty"`
	// Text is the step as written.
	Text string `json:"text,omitempty"`
}

// Var is a name and its value.
type Var struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Description is what a template is built from.
type Description struct {
	// From is the image or template the build begins with; as sandbox.Spec.Image.
	From  string `json:"from"`
	Steps []Step `json:"steps,omitempty"`
	// Start is a script that is started in the background before the memory
	// snapshot, and Ready a script that is run until it succeeds.
	Start string `json:"start,omitempty"`
	Ready string `json:"ready,omitempty"`
}

// Limits of a description.
const (
	MaxSteps       = 500
	MaxDescription = 1 << 20 // bytes of a Dockerfile or of the JSON form
)

// nameRE is compiled on first use, because every process loads this package.
var nameRE = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9](?:[a-z0-9._-]{0,126}[a-z0-9])?$`) })

// ParseName splits "name[:tag]"; without a tag it is "latest".
func ParseName(s string) (name, tag string, err error) {
	name, tag, tagged := strings.Cut(s, ":")
	if !tagged {
		tag = "latest"
	}
	if !nameRE().MatchString(name) || !nameRE().MatchString(tag) {
		return "", "", invalid("name", "%q is not NAME or NAME:TAG with the characters a-z, 0-9, '.', '_' and '-'", clip(s))
	}
	return name, tag, nil
}

// Prefix marks a template name in the place of an image.
const Prefix = "template:"

// ParseRef splits "[TENANT/]NAME[:TAG]". Without a tenant, the name is the
// caller's.
func ParseRef(caller, ref string) (tenant, name, tag string, err error) {
	tenant, rest, full := strings.Cut(ref, "/")
	if !full {
		tenant, rest = caller, ref
	} else if sandbox.ValidateName(tenant) != nil {
		return "", "", "", invalid("name", "%q is not TENANT/NAME or TENANT/NAME:TAG", clip(ref))
	}
	name, tag, err = ParseName(rest)
	return tenant, name, tag, err
}

// ShortRef removes the caller's own tenant from a reference, so that each
// template has one name for policies.
func ShortRef(caller, ref string) string {
	if rest, ok := strings.CutPrefix(ref, caller+"/"); ok && !strings.Contains(rest, "/") {
		return rest
	}
	return ref
}

// ParseJSON parses the JSON form of a description.
func ParseJSON(r io.Reader) (*Description, error) {
	raw, err := io.ReadAll(io.LimitReader(r, MaxDescription+1))
	if err != nil {
		return nil, err
	}
	if len(raw) > MaxDescription {
		return nil, invalid("template", "the description has more than %d bytes", MaxDescription)
	}
	d := new(Description)
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(d); err != nil {
		return nil, invalid("template", "not a description in JSON: %v", err)
	}
	return d, d.Validate()
}

// Validate returns the first error of a description.
func (d *Description) Validate() error {
	if d.From == "" {
		return invalid("from", "no base image is given")
	}
	if strings.IndexByte(d.From, 0) >= 0 {
		return invalid("from", "contains a NUL byte")
	}
	if len(d.Steps) > MaxSteps {
		return invalid("steps", "%d steps, at most %d", len(d.Steps), MaxSteps)
	}
	for i := range d.Steps {
		if err := d.Steps[i].validate(); err != nil {
			return err
		}
	}
	return nil
}

// arity is the minimum and maximum number of arguments of an operation.
var arity = map[Op][2]int{
	OpCopy: {2, 1000}, OpUser: {1, 1}, OpWorkdir: {1, 1}, OpExpose: {1, 1000}, OpStopSignal: {1, 1},
	OpEnv: {0, 0}, OpLabel: {0, 0}, OpRun: {0, 1000}, OpCmd: {0, 1000}, OpEntrypoint: {0, 1000},
}

func (s *Step) validate() error {
	n, known := arity[s.Op]
	switch {
	case !known:
		return s.invalid("%q is not an operation", clip(string(s.Op)))
	case len(s.Args) < n[0]:
		return s.invalid("%s needs at least %d arguments", s.Op, n[0])
	case len(s.Args) > n[1]:
		return s.invalid("%s takes at most %d arguments", s.Op, n[1])
	case s.Op == OpRun && (len(s.Args) == 0) == (s.Shell == ""):
		return s.invalid("run takes either a script or arguments")
	case (s.Op == OpEnv || s.Op == OpLabel) && len(s.Vars) == 0:
		return s.invalid("%s sets nothing", s.Op)
	case s.Op == OpCopy:
		return s.validateCopy()
	}
	for _, v := range slices.Concat(s.Vars, s.BuildEnv) {
		if v.Name == "" || strings.ContainsAny(v.Name, "=\x00") || strings.IndexByte(v.Value, 0) >= 0 {
			return s.invalid("%q is not a name", clip(v.Name))
		}
	}
	return nil
}

func (s *Step) validateCopy() error {
	sources, dest := s.Args[:len(s.Args)-1], s.Args[len(s.Args)-1]
	if len(sources) > 1 && !strings.HasSuffix(dest, "/") {
		return s.invalid("the destination of several files must end with a slash: %q", clip(dest))
	}
	for _, a := range s.Args {
		if a == "" || strings.IndexByte(a, 0) >= 0 {
			return s.invalid("an empty name")
		}
	}
	for _, src := range sources {
		if _, err := inContext(src); err != nil {
			return s.invalid("%q is outside the build files", clip(src))
		}
	}
	return nil
}

// inContext returns the clean relative form of a name in the build files; "/"
// is their root.
func inContext(name string) (string, error) {
	clean := path.Clean(strings.TrimLeft(name, "/"))
	if clean == ".." || strings.HasPrefix(clean, "../") {
		return "", fmt.Errorf("%q leads out", name)
	}
	return clean, nil
}

func (s *Step) invalid(format string, args ...any) error {
	subject := string(s.Op)
	if s.Line > 0 {
		subject = fmt.Sprintf("line %d", s.Line)
	}
	return invalid(subject, format, args...)
}

func invalid(subject, format string, args ...any) error {
	return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "template.build", Subject: subject, Message: fmt.Sprintf(format, args...)}
}

// clip shortens user input in messages.
func clip(s string) string {
	if len(s) > 120 {
		return s[:120] + "…"
	}
	return s
}

// String describes the step in one line.
func (s *Step) String() string {
	if s.Text != "" {
		return s.Text
	}
	var b strings.Builder
	b.WriteString(strings.ToUpper(string(s.Op)))
	for _, v := range s.Vars {
		fmt.Fprintf(&b, " %s=%s", v.Name, v.Value)
	}
	if s.Shell != "" {
		b.WriteString(" " + s.Shell)
	}
	for _, a := range s.Args {
		b.WriteString(" " + a)
	}
	return clip(b.String())
}
