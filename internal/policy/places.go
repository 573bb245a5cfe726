package policy

import (
	"fmt"
	"strings"
)

// Places are the parts of a request in which a placeholder is replaced.
type Places struct {
	Headers []string // names, in lower case
	Queries []string // names
	Any     struct{ Header, Query bool }
	Basic   bool // user name and password of HTTP basic authentication
	Body    bool
}

// ParsePlaces parses SecretRef.In.
func ParsePlaces(in []string) (Places, error) {
	var p Places
	if len(in) == 0 {
		p.Any.Header, p.Basic = true, true
		return p, nil
	}
	for _, s := range in {
		kind, name, named := strings.Cut(s, ":")
		switch {
		case kind == "header" && !named:
			p.Any.Header = true
		case kind == "header" && isToken(name) && !unset[strings.ToLower(name)]:
			p.Headers = append(p.Headers, strings.ToLower(name))
		case kind == "query" && !named:
			p.Any.Query = true
		case kind == "query" && name != "" && !hasControl(name):
			p.Queries = append(p.Queries, name)
		case s == "basic":
			p.Basic = true
		case s == "body":
			p.Body = true
		default:
			return p, fmt.Errorf("%q is not one of header, header:NAME, basic, query, query:NAME and body", clip(s))
		}
	}
	return p, nil
}
