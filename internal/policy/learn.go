package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/bounds"
)

// Seen is a connection or request recorded in a decision. Method and Path are
// empty for a connection that was not inspected.
type Seen struct {
	Host   string // name or address
	Port   uint16
	Method string
	Path   string // normalised or not, without the query
}

// Learn returns the smallest profile that allows everything that was seen:
// exact hosts and ports, and for inspected requests exactly their methods and
// paths. Requests that can never be allowed, such as those to an invalid host,
// are left out and returned in left.
func Learn(name string, seen []Seen) (profile sandbox.Profile, left []Seen) {
	profile = sandbox.Profile{Name: name, Default: sandbox.Deny}
	whole := map[string]bool{}                           // hosts with connections that were not inspected
	paths := map[string]map[string]map[string]struct{}{} // host, path, methods
	for _, s := range seen {
		host, path, ok := s.pattern()
		switch {
		case !ok:
			left = append(left, s)
		case s.Method == "":
			whole[host] = true
		default:
			if paths[host] == nil {
				paths[host] = map[string]map[string]struct{}{}
			}
			if paths[host][path] == nil {
				paths[host][path] = map[string]struct{}{}
			}
			paths[host][path][s.Method] = struct{}{}
		}
	}
	for _, host := range slices.Sorted(maps.Keys(paths)) {
		if !whole[host] { // otherwise the whole host is allowed
			profile.Rules = append(profile.Rules, requestRules(host, paths[host])...)
		}
	}
	for hosts := range slices.Chunk(slices.Sorted(maps.Keys(whole)), bounds.MaxRuleHosts) {
		profile.Rules = append(profile.Rules, sandbox.Rule{Action: sandbox.Allow, Hosts: hosts})
	}
	return profile, left
}

// pattern returns the host and path in the form used in rules, if they can be
// expressed.
func (s Seen) pattern() (host, path string, ok bool) {
	h, err := ParseHost(s.Host)
	if err != nil || s.Port == 0 || s.Method == "CONNECT" || s.Method == "TRACE" || s.Method != "" && !isToken(s.Method) || s.Method != strings.ToUpper(s.Method) {
		return "", "", false
	}
	host = joinPort(h, s.Port)
	if s.Method == "" {
		return host, "", true
	}
	norm, err := NormalizePath(s.Path)
	return host, strings.ReplaceAll(norm, "*", "%2A"), err == nil
}

func joinPort(h Host, port uint16) string {
	if h.Addr.Is6() {
		return fmt.Sprintf("[%s]:%d", h.Addr, port)
	}
	return fmt.Sprintf("%s:%d", h, port)
}

// requestRules returns the rules for one host. Paths that were used with the
// same methods share a rule.
func requestRules(host string, paths map[string]map[string]struct{}) []sandbox.Rule {
	byMethods := map[string][]string{}
	for path, methods := range paths {
		key := strings.Join(slices.Sorted(maps.Keys(methods)), " ")
		byMethods[key] = append(byMethods[key], path)
	}
	var rules []sandbox.Rule
	for _, methods := range slices.Sorted(maps.Keys(byMethods)) {
		all := byMethods[methods]
		slices.Sort(all)
		for part := range slices.Chunk(all, maxPaths) {
			rules = append(rules, sandbox.Rule{Action: sandbox.Allow, Hosts: []string{host}, Methods: strings.Fields(methods), Paths: part})
		}
	}
	return rules
}
