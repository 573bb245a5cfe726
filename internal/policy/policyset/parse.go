package policyset

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/docker/go-units"
	"go.yaml.in/yaml/v3"

	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/bounds"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Limits of a set.
const (
	MaxFiles    = 256
	MaxFile     = 4 << 20 // bytes
	maxPolicies = 1000
)

// Load reads a policy set from fsys: the named file or, if name is ".", all
// files in its top directory whose names end in .yaml, .yml or .json. Finding
// no file is an error, because an empty set allows everything.
func Load(fsys fs.FS, name string) (*Set, error) {
	names := []string{name}
	if name == "." {
		names = nil
		entries, err := fs.ReadDir(fsys, ".")
		if err != nil {
			return nil, invalid("policies", 0, "the directory cannot be read")
		}
		for _, e := range entries {
			if ext := path.Ext(e.Name()); slices.Contains([]string{".yaml", ".yml", ".json"}, ext) && !strings.HasPrefix(e.Name(), ".") {
				names = append(names, e.Name())
			}
		}
	}
	if len(names) == 0 || len(names) > MaxFiles {
		return nil, invalid("policies", 0, "there are %d files with policies, not 1 to %d", len(names), MaxFiles)
	}
	files := map[string][]byte{}
	for _, n := range names {
		text, err := readFile(fsys, n)
		if err != nil {
			return nil, err
		}
		files[n] = text
	}
	return parse(files, func(name string) ([]byte, error) { return readFile(fsys, name) })
}

// Open is Load for a file or directory of this machine.
func Open(name string) (*Set, error) {
	info, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, invalid(name, 0, "does not exist")
	case err != nil:
		return nil, invalid(name, 0, "cannot be read")
	case info.IsDir():
		return Load(os.DirFS(name), ".")
	}
	return Load(os.DirFS(filepath.Dir(name)), filepath.Base(name))
}

func readFile(fsys fs.FS, name string) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, invalid(name, 0, "the file cannot be read")
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	switch {
	case err != nil:
		return nil, invalid(name, 0, "the file cannot be read")
	case len(text) > MaxFile:
		return nil, invalid(name, 0, "the file is too large")
	}
	return text, nil
}

// Parse parses files given by name. Public keys of signers cannot be
// referenced. An error is CodeInvalid and contains the line.
func Parse(files map[string][]byte) (*Set, error) { return parse(files, nil) }

func parse(files map[string][]byte, readKey func(string) ([]byte, error)) (*Set, error) {
	set, hash, keys := &Set{}, sha256.New(), map[string][]byte{}
	var names []string
	for n := range files {
		names = append(names, n)
	}
	slices.Sort(names)
	seen := map[string]string{}
	for _, n := range names {
		fmt.Fprintf(hash, "%q %d\n", n, len(files[n]))
		hash.Write(files[n])
		doc := document{file: n, readKey: readKey, keys: keys}
		if err := doc.parse(files[n]); err != nil {
			return nil, err
		}
		for _, p := range doc.policies {
			if other, taken := seen[p.Name]; taken {
				return nil, invalid(n, p.Lines["name"], "the policy %s is in %s too", p.Name, other)
			}
			seen[p.Name] = n
		}
		set.policies, set.tests = append(set.policies, doc.policies...), append(set.tests, doc.tests...)
	}
	switch {
	case len(set.policies) > maxPolicies:
		return nil, invalid("policies", 0, "%d policies, at most %d", len(set.policies), maxPolicies)
	case len(set.policies) == 0:
		return nil, invalid(strings.Join(names, ", "), 0, "contains no policy")
	}
	for _, n := range slices.Sorted(maps.Keys(keys)) {
		fmt.Fprintf(hash, "key %q %d\n", n, len(keys[n]))
		hash.Write(keys[n])
	}
	set.digest = hex.EncodeToString(hash.Sum(nil))
	return set, nil
}

func invalid(file string, line int, format string, args ...any) error {
	if line > 0 {
		file = fmt.Sprintf("%s:%d", file, line)
	}
	return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: file, Message: fmt.Sprintf(format, args...), Hint: "see docs/operate/policies.md"}
}

// document is one file. Its nodes are decoded one by one, so that unknown
// fields are errors and errors have line numbers.
type document struct {
	file     string
	policies []entry
	tests    []Test

	readKey func(name string) ([]byte, error) // reads the file of a public key; nil: keys are not supported
	keys    map[string][]byte                 // the keys read so far, of all documents
}

func (d *document) fail(n *yaml.Node, format string, args ...any) error {
	return invalid(d.file, n.Line, format, args...)
}

func (d *document) parse(text []byte) error {
	var root yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(text))
	if err := dec.Decode(&root); err != nil {
		return invalid(d.file, 0, "it is not YAML or JSON: %s", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return invalid(d.file, 0, "it contains more than one document")
	}
	return d.fields(root.Content[0], nil, map[string]func(*yaml.Node) error{
		"policies": func(n *yaml.Node) error { return d.each(n, d.policy) },
		"tests":    func(n *yaml.Node) error { return d.each(n, d.test) },
	})
}

// each calls f for each item of a list.
func (d *document) each(n *yaml.Node, f func(*yaml.Node) error) error {
	if n.Kind != yaml.SequenceNode {
		return d.fail(n, "a list is needed here")
	}
	for _, item := range n.Content {
		if err := f(item); err != nil {
			return err
		}
	}
	return nil
}

// fields calls the function in known for each field of a mapping, and stores
// its line.
func (d *document) fields(n *yaml.Node, lines map[string]int, known map[string]func(*yaml.Node) error) error {
	if n.Kind != yaml.MappingNode {
		return d.fail(n, "fields with values are needed here")
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		read := known[key.Value]
		switch {
		case read == nil:
			return d.fail(key, "unknown field %q", clip(key.Value))
		case seen[key.Value]:
			return d.fail(key, "the field %q is set twice", key.Value)
		case value.Tag == "!!null":
			return d.fail(key, "the field %q has no value", key.Value)
		}
		seen[key.Value] = true
		if lines != nil {
			lines[key.Value] = key.Line
		}
		if err := read(value); err != nil {
			return err
		}
	}
	return nil
}

// into decodes a scalar, or a list of scalars.
func into[T any](d *document, to *T) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		if err := n.Decode(to); err != nil {
			return d.fail(n, "%q is not a valid value here", clip(n.Value))
		}
		return nil
	}
}

// pointer is into for an optional field.
func pointer[T any](d *document, to **T, read func(string) (T, error)) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		v, err := read(n.Value)
		if n.Kind != yaml.ScalarNode || err != nil {
			return d.fail(n, "%q is not a valid value here", clip(n.Value))
		}
		*to = &v
		return nil
	}
}

// strings decodes a list of strings; the result is never nil.
func (d *document) strings(to *[]string) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		*to = []string{}
		return d.each(n, func(item *yaml.Node) error {
			return d.text(item, to)
		})
	}
}

func (d *document) text(item *yaml.Node, to *[]string) error {
	if item.Kind != yaml.ScalarNode {
		return d.fail(item, "a text is needed here")
	}
	*to = append(*to, item.Value)
	return nil
}

var errNotPositive = errors.New("not above zero")

func size(s string) (int64, error) {
	n, err := units.RAMInBytes(s)
	if err == nil && n <= 0 {
		err = errNotPositive
	}
	return n, err
}

func duration(s string) (time.Duration, error) {
	v, err := time.ParseDuration(s)
	if err == nil && v <= 0 {
		err = errNotPositive
	}
	return v, err
}

func number[T int64 | float64](s string) (T, error) {
	var v T
	err := yaml.Unmarshal([]byte(s), &v)
	if err == nil && !(v > 0) {
		err = errNotPositive
	}
	return v, err
}

func (d *document) policy(n *yaml.Node) error {
	p := entry{Policy: operator.Policy{File: d.file, Lines: map[string]int{}}}
	var modes []string
	err := d.fields(n, p.Lines, map[string]func(*yaml.Node) error{
		"name": into(d, &p.Name), "description": into(d, &p.Description), "tenants": d.strings(&p.Tenants), "labels": d.labels(&p.Labels),
		"cpus": pointer(d, &p.CPUs, number[float64]), "memory": pointer(d, &p.Memory, size), "disk": pointer(d, &p.Disk, size),
		"pids": pointer(d, &p.PIDs, number[int64]), "lifetime": pointer(d, &p.Lifetime, duration), "isolation": into(d, &p.Isolation),
		"images": d.images(&p), "mounts": d.strings(&p.Mounts), "secrets": d.strings(&p.Secrets), "secretModes": d.strings(&modes),
		"network":         func(n *yaml.Node) error { p.Network = new(bool); return into(d, p.Network)(n) },
		"egress":          func(n *yaml.Node) error { p.Egress = &sandbox.Profile{}; return d.profile(n, p.Egress) },
		"redact":          into(d, &p.Redact),
		"onUnenforceable": func(n *yaml.Node) error { p.OnUnenforceable = n.Value; return nil },
	})
	if err != nil {
		return err
	}
	if modes != nil {
		p.SecretModes = []sandbox.SecretMode{}
	}
	for _, m := range modes {
		p.SecretModes = append(p.SecretModes, sandbox.SecretMode(m))
	}
	d.policies = append(d.policies, p)
	return d.check(n, &p.Policy)
}

// check refuses policies that cannot be meant.
func (d *document) check(n *yaml.Node, p *operator.Policy) error {
	at := func(field string) *yaml.Node { return &yaml.Node{Line: p.Lines[field]} }
	if sandbox.ValidateName(p.Name) != nil {
		return d.fail(n, "a policy needs a name of 1 to %d characters of a-z, 0-9 and -", bounds.MaxNameLen)
	}
	for _, dir := range p.Mounts {
		if dir, _ = strings.CutSuffix(dir, ":ro"); !path.IsAbs(dir) || path.Clean(dir) != dir {
			return d.fail(at("mounts"), "%q is not an absolute path, with or without :ro", clip(dir))
		}
	}
	if !p.Isolation.Valid() || p.Isolation == "" && p.Lines["isolation"] > 0 {
		return d.fail(at("isolation"), "%q is not one of none, kernel and hardware", clip(string(p.Isolation)))
	}
	for _, m := range p.SecretModes {
		if m != sandbox.SecretGateway && m != sandbox.SecretEnv {
			return d.fail(at("secretModes"), "%q is neither gateway nor env", clip(string(m)))
		}
	}
	if !slices.Contains([]policy.Unenforceable{"", policy.Refuse, policy.Narrow, policy.LetPass}, policy.Unenforceable(p.OnUnenforceable)) {
		return d.fail(at("onUnenforceable"), "%q is not one of refuse, narrow and allow", clip(p.OnUnenforceable))
	}
	if p.Tenants != nil && len(p.Tenants) == 0 {
		return d.fail(at("tenants"), "an empty list of tenants matches none: leave out the field to match all tenants")
	}
	if p.Egress == nil {
		return nil
	}
	if err := policy.CheckEgressLimit(policy.EgressLimit{Name: p.Name, Profile: *p.Egress}); err != nil {
		return d.fail(at("egress"), "%v", err)
	}
	return nil
}

// labels decodes the values that labels may have.
func (d *document) labels(to *map[string][]string) func(*yaml.Node) error {
	return func(n *yaml.Node) error {
		*to = map[string][]string{}
		if n.Kind != yaml.MappingNode {
			return d.fail(n, "fields with values are needed here")
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i].Value, n.Content[i+1]
			var values []string
			if value.Kind == yaml.ScalarNode {
				values = []string{value.Value}
			} else if err := d.strings(&values)(value); err != nil {
				return err
			}
			if len(values) == 0 {
				return d.fail(value, "no allowed values are given for the label")
			}
			(*to)[key] = values
		}
		return nil
	}
}

// profile decodes rules, in the format of a profile.
func (d *document) profile(n *yaml.Node, to *sandbox.Profile) error {
	var doc map[string]any
	if err := n.Decode(&doc); err != nil {
		return d.fail(n, "it is not a profile")
	}
	plain, err := json.Marshal(doc)
	if err != nil {
		return d.fail(n, "it is not a profile")
	}
	strict := json.NewDecoder(bytes.NewReader(plain))
	strict.DisallowUnknownFields()
	if err := strict.Decode(to); err != nil {
		return d.fail(n, "%s", strings.TrimPrefix(err.Error(), "json: "))
	}
	return nil
}

// clip shortens user input in a message.
func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}
