package resource

import (
	"slices"
	"strings"

	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
)

// Filters are what --filter asks for, as in docker: of one key any value may
// hold, of several keys all must, and of labels all.
type Filters map[string][]string

// filterKeys maps the keys of a filter to functions that match a value.
var filterKeys = map[string]func(s *sandbox.Sandbox, value string) bool{
	"name":  func(s *sandbox.Sandbox, v string) bool { return strings.Contains(s.Name, v) },
	"id":    func(s *sandbox.Sandbox, v string) bool { return strings.HasPrefix(string(s.ID), v) },
	"state": func(s *sandbox.Sandbox, v string) bool { return string(s.State) == v },
	"image": func(s *sandbox.Sandbox, v string) bool { return s.Image == v },
	"label": func(s *sandbox.Sandbox, v string) bool { return HasLabels(s.Labels, []string{v}) },
}

// states are what a sandbox can be in.
var states = []sandbox.State{
	sandbox.Creating, sandbox.Running, sandbox.Exited, sandbox.Pausing, sandbox.Paused, sandbox.Resuming, sandbox.Stopped, sandbox.Lost, sandbox.Failed, sandbox.Gone,
}

func stateNames() (names []string) {
	for _, s := range states {
		names = append(names, string(s))
	}
	return names
}

// ParseFilters reads KEY=VALUE. "status" is docker's word for the state.
func ParseFilters(texts []string) (Filters, error) {
	f := Filters{}
	for _, text := range texts {
		key, value, ok := strings.Cut(text, "=")
		if key == "status" {
			key = "state"
		}
		if _, known := filterKeys[key]; !known || !ok || value == "" {
			return nil, term.BadFlag("filter", "%q is not KEY=VALUE with a key of name, id, state, image or label", text)
		}
		if key == "state" && !slices.Contains(states, sandbox.State(value)) {
			return nil, term.BadFlag("filter", "%q is not a state, which are %s", value, strings.Join(stateNames(), ", "))
		}
		f[key] = append(f[key], value)
	}
	return f, nil
}

// Match reports whether a sandbox is one of those that are asked for.
func (f Filters) Match(s sandbox.Sandbox) bool {
	for key, values := range f {
		has := func(v string) bool { return filterKeys[key](&s, v) }
		lacks := func(v string) bool { return !has(v) }
		if key == "label" && slices.ContainsFunc(values, lacks) || key != "label" && !slices.ContainsFunc(values, has) {
			return false
		}
	}
	return true
}

// HasLabels reports whether labels have all that are wanted: KEY or KEY=VALUE.
func HasLabels(have map[string]string, wanted []string) bool {
	for _, w := range wanted {
		key, value, exact := strings.Cut(w, "=")
		if got, ok := have[key]; !ok || exact && got != value {
			return false
		}
	}
	return true
}
