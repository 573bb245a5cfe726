package remote

import (
	"maps"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/sandbox/bounds"
)

// Labels that the provider sets on sandboxes and snapshots of the other daemon.
const (
	prefix     = "remote."
	labelScope = prefix + "scope" // the directory that owns it
	labelID    = prefix + "id"    // its ID here
	labelEnv   = prefix + "env"   // the names of its variables; further labels are numbered
)

// reserved is the prefix of the other daemon's own labels.
const reserved = "atoll."

// outward converts labels for the other daemon. Labels that collide with those
// of the other daemon or of this provider get a prefix.
func outward(scope string, id string, env, own map[string]string) map[string]string {
	all := map[string]string{labelScope: scope, labelID: id}
	for k, v := range own {
		if strings.HasPrefix(k, reserved) || strings.HasPrefix(k, prefix) {
			k = prefix + k
		}
		all[k] = v
	}
	maps.Copy(all, envLabels(slices.Sorted(maps.Keys(env))))
	return all
}

// inward reverses outward.
func inward(labels map[string]string) map[string]string {
	own := map[string]string{}
	for k, v := range labels {
		if k == labelScope || k == labelID || strings.HasPrefix(k, labelEnv) {
			continue
		}
		own[strings.TrimPrefix(k, prefix)] = v
	}
	return own
}

// loops reports whether this provider requested the sandbox itself, through a
// chain of daemons.
func loops(scope string, labels map[string]string) bool {
	for k, v := range labels {
		if strings.HasSuffix(k, labelScope) && v == scope {
			return true
		}
	}
	return false
}

// envSep separates names of variables in a label.
const envSep = ","

// envLabels returns labels that list names of variables, as many as fit. They
// contain no values.
func envLabels(names []string) map[string]string {
	labels, key, line := map[string]string{}, labelEnv, ""
	for _, name := range names {
		if len(name) > bounds.MaxLabelLen/2 || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f || r == ',' }) {
			continue
		}
		if len(line)+len(envSep)+len(name) > bounds.MaxLabelLen {
			labels[key], line = line, ""
			key += "+"
		}
		if line != "" {
			line += envSep
		}
		line += name
	}
	if line != "" {
		labels[key] = line
	}
	return labels
}

// envNames returns the names that envLabels listed.
func envNames(labels map[string]string) (names []string) {
	for k, v := range labels {
		if strings.Trim(k, "+") == labelEnv {
			names = append(names, strings.Split(v, envSep)...)
		}
	}
	return names
}
