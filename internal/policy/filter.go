package policy

import (
	"fmt"
	"mime"
	"regexp"
	"strings"

	"github.com/atoll-run/atoll/sandbox"
)

// Limits on the size of a body, in bytes, that a regex filter can search.
const (
	defaultScan = 1 << 20
	maxScan     = 16 << 20
)

// maxTypes limits the media types of one filter.
const maxTypes = 64

// Filters are the compiled filters of a rule.
type Filters struct {
	request, response filterSet
}

// filterSet are the filters of one direction.
type filterSet struct {
	size     int64 // in bytes; 0: no limit
	patterns []*regexp.Regexp
	scan     int64
	types    [][]string // for each filter, the allowed media types
}

func compileFilters(number int, in []sandbox.Filter) (*Filters, error) {
	if len(in) == 0 {
		return nil, nil
	}
	f := &Filters{}
	for _, one := range in {
		var sets []*filterSet
		switch one.Direction {
		case sandbox.DirRequest:
			sets = []*filterSet{&f.request}
		case sandbox.DirResponse:
			sets = []*filterSet{&f.response}
		case sandbox.DirBoth, "":
			sets = []*filterSet{&f.request, &f.response}
		default:
			return nil, invalid(field(number, "filters"), "%q is not one of request, response and both", clip(string(one.Direction)))
		}
		for _, s := range sets {
			if err := s.add(one); err != nil {
				return nil, invalid(field(number, "filters"), "%s: %v", clip(string(one.Type)), err)
			}
		}
	}
	return f, nil
}

func (s *filterSet) add(f sandbox.Filter) error {
	switch f.Type {
	case sandbox.FilterSize:
		if f.Bytes <= 0 {
			return fmt.Errorf("bytes is not a positive number")
		}
		if s.size == 0 || f.Bytes < s.size {
			s.size = f.Bytes
		}
	case sandbox.FilterRegex:
		if f.Pattern == "" || len(f.Pattern) > 4096 {
			return fmt.Errorf("the pattern is empty or longer than 4096 bytes")
		}
		if f.Bytes < 0 || f.Bytes > maxScan {
			return fmt.Errorf("bytes is not between 0 and %d", maxScan)
		}
		re, err := regexp.Compile(f.Pattern)
		if err != nil {
			return err
		}
		scan := f.Bytes
		if scan == 0 {
			scan = defaultScan
		}
		s.patterns, s.scan = append(s.patterns, re), max(s.scan, scan)
	case sandbox.FilterContentType:
		if len(f.Types) == 0 || len(f.Types) > maxTypes {
			return fmt.Errorf("no types, or more than %d", maxTypes)
		}
		var types []string
		for _, t := range f.Types {
			major, minor, ok := strings.Cut(strings.ToLower(strings.TrimSpace(t)), "/")
			if !ok || !isToken(major) || !isToken(minor) {
				return fmt.Errorf("%q is not a media type", clip(t))
			}
			types = append(types, major+"/"+minor)
		}
		s.types = append(s.types, types)
	default:
		return fmt.Errorf("it is not one of regex, size and content_type")
	}
	return nil
}

func (f *Filters) set(d sandbox.Direction) *filterSet {
	if f == nil {
		return &filterSet{}
	}
	if d == sandbox.DirResponse {
		return &f.response
	}
	return &f.request
}

// Body describes a body before it is read.
type Body struct {
	Type     string // the Content-Type header
	Encoding string // the Content-Encoding header
	Length   int64  // in bytes; -1: unknown
}

// Head checks the headers of a message. A nil error allows it.
func (f *Filters) Head(d sandbox.Direction, b Body) error {
	s := f.set(d)
	if b.Length == 0 {
		return nil
	}
	if s.size > 0 && b.Length > s.size {
		return fmt.Errorf("the %s is larger than %d bytes", d, s.size)
	}
	if len(s.patterns) > 0 {
		if e := strings.ToLower(strings.TrimSpace(b.Encoding)); e != "" && e != "identity" {
			return fmt.Errorf("the %s is compressed, so that it cannot be searched", d)
		}
		if b.Length > s.scan {
			return fmt.Errorf("the %s is larger than the %d bytes that are searched", d, s.scan)
		}
	}
	if len(s.types) == 0 {
		return nil
	}
	kind, _, err := mime.ParseMediaType(b.Type)
	if err != nil {
		return fmt.Errorf("the %s has no usable Content-Type", d)
	}
	for _, types := range s.types {
		if !typeIn(kind, types) {
			return fmt.Errorf("the %s is of the type %s", d, clip(kind))
		}
	}
	return nil
}

func typeIn(kind string, types []string) bool {
	major, _, _ := strings.Cut(kind, "/")
	for _, t := range types {
		if t == kind || t == "*/*" || t == major+"/*" {
			return true
		}
	}
	return false
}

// Limit returns the maximum number of bytes of a body, 0 for no limit.
func (f *Filters) Limit(d sandbox.Direction) int64 { return f.set(d).size }

// Hold returns the maximum size of a body that must be buffered and passed to
// Search before any of it is forwarded. A longer body is refused. 0: no search
// is needed.
func (f *Filters) Hold(d sandbox.Direction) int64 { return f.set(d).scan }

// Search checks a whole body. A nil error allows it. The error does not quote
// the match, which may be a secret.
func (f *Filters) Search(d sandbox.Direction, body []byte) error {
	for i, re := range f.set(d).patterns {
		if re.Match(body) {
			return fmt.Errorf("the %s matches pattern %d of the rule", d, i+1)
		}
	}
	return nil
}
