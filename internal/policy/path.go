package policy

import (
	"errors"
	"strings"
)

// maxPath limits the length of a request's path, far above what servers accept.
const maxPath = 32 << 10

// The errors of a path. Paths that two programs could interpret differently are
// refused.
var (
	errLongPath  = errors.New("the path is too long")
	errRelative  = errors.New("the path does not begin with a slash")
	errBadEscape = errors.New("the path contains an invalid percent escape")
	errBadByte   = errors.New("the path contains a control character, a backslash or a byte that must be escaped")
	errDotDot    = errors.New("the path climbs with \"..\" behind an escape")
)

// NormalizePath returns the canonical form of a request's path, escaped and
// without a query. It is used for matching and must be the form that is
// forwarded. Unneeded escapes are decoded, the others get upper-case digits,
// empty segments and "." are removed, and ".." removes the segment before it.
// Normalising again changes nothing.
//
// A path that servers are known to interpret differently is refused: one with
// control characters or backslashes, escaped or not, or with a ".." that
// appears only after decoding an escape, decoding twice, or removing a path
// parameter.
func NormalizePath(raw string) (string, error) {
	if len(raw) > maxPath {
		return "", errLongPath
	}
	if raw == "" || raw[0] != '/' {
		return "", errRelative
	}
	clean, err := unescapeNeedless(raw)
	if err != nil {
		return "", err
	}
	var out []string
	segments := strings.Split(clean[1:], "/")
	for i, s := range segments {
		switch s {
		case "":
		case ".":
		case "..":
			if len(out) > 0 {
				out = out[:len(out)-1]
			}
		default:
			if err := checkSegment(s); err != nil {
				return "", err
			}
			out = append(out, s)
			continue
		}
		if i == len(segments)-1 && len(out) > 0 { // keep the trailing slash of a directory
			out = append(out, "")
		}
	}
	return "/" + strings.Join(out, "/"), nil
}

// unescapeNeedless decodes escapes of unreserved characters and normalises
// everything else.
func unescapeNeedless(raw string) (string, error) {
	var b strings.Builder
	b.Grow(len(raw))
	for i := 0; i < len(raw); i++ {
		c, wasEscaped := raw[i], raw[i] == '%'
		if wasEscaped {
			v, ok := escaped(raw[i:])
			if !ok {
				return "", errBadEscape
			}
			c, i = v, i+2
		}
		switch {
		case c < ' ' || c == 0x7f || c == '\\' || c == ' ' && !wasEscaped:
			return "", errBadByte
		case unreserved(c) || !wasEscaped && delimiter(c):
			b.WriteByte(c)
		default:
			b.WriteByte('%')
			b.WriteByte(hexDigits[c>>4])
			b.WriteByte(hexDigits[c&15])
		}
	}
	return b.String(), nil
}

const hexDigits = "0123456789ABCDEF"

// escaped decodes the escape at the beginning of s.
func escaped(s string) (byte, bool) {
	if len(s) < 3 || s[0] != '%' {
		return 0, false
	}
	hi, ok1 := digit(s[1])
	lo, ok2 := digit(s[2])
	return hi<<4 | lo, ok1 && ok2
}

func digit(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return c | 0x20 - 'a' + 10, true
	}
	return 0, false
}

func unreserved(c byte) bool {
	return c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9' || strings.IndexByte("-._~", c) >= 0
}

// delimiter reports whether a reserved byte may be in a path without an escape.
func delimiter(c byte) bool { return strings.IndexByte("/!$&'()*+,;=:@[]", c) >= 0 }

// maxUnescape is how many times in a row servers may decode escapes.
const maxUnescape = 4

// checkSegment refuses a segment that a server could interpret as "..", or as
// containing a separator.
func checkSegment(s string) error {
	for range maxUnescape {
		for part := range strings.FieldsFuncSeq(s, func(r rune) bool { return r == '/' || r == '\\' }) {
			name, _, _ := strings.Cut(part, ";")
			if name == ".." || name == "." {
				return errDotDot
			}
		}
		if strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\\' }) {
			return errBadByte
		}
		if strings.IndexByte(s, '%') < 0 {
			return nil
		}
		s = unescapeAll(s)
	}
	return nil
}

// unescapeAll decodes every escape once and keeps invalid ones.
func unescapeAll(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if v, ok := escaped(s[i:]); ok {
			b.WriteByte(v)
			i += 2
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// A path is matched in decoded form, because that is how the server reads it.
// Two bytes that no path contains represent characters that would otherwise be
// ambiguous.
const (
	starMark  = 0 // "*" in a pattern; a literal star is written %2A
	slashMark = 1 // an escaped slash, which does not separate segments
)

// requestPath is a path in the forms used for matching.
type requestPath struct {
	normal string
	// literal holds the segments as a server reads them that follows the
	// standards.
	literal []string
	// loose holds them as a server reads them that decodes escapes repeatedly,
	// treats an escaped slash as a slash, and drops path parameters.
	loose []string
}

// parseRequestPath normalises and splits a path.
func parseRequestPath(raw string) (requestPath, error) {
	norm, err := NormalizePath(raw)
	if err != nil {
		return requestPath{}, err
	}
	p := requestPath{normal: norm, literal: strings.Split(norm[1:], "/")}
	if !strings.ContainsAny(norm, "%;") {
		return p, nil
	}
	for i, s := range p.literal {
		p.literal[i] = unescapeAll(strings.ReplaceAll(s, "%2F", string(rune(slashMark))))
	}
	flat := norm
	for range maxUnescape {
		flat = unescapeAll(flat)
	}
	for s := range strings.SplitSeq(flat[1:], "/") {
		s, _, _ = strings.Cut(s, ";")
		p.loose = append(p.loose, s)
	}
	return p, nil
}

// pathPattern is a parsed pattern of Rule.Paths.
type pathPattern struct{ segments []string }

// anySegments matches any number of segments.
const anySegments = "**"

var errBadPattern = errors.New("\"**\" must be alone between two slashes")

// parsePath parses a path pattern, which is normalised like the paths it is
// compared with.
func parsePath(s string) (pathPattern, error) {
	norm, err := NormalizePath(s)
	if err != nil {
		return pathPattern{}, err
	}
	segments := strings.Split(norm[1:], "/")
	for i, seg := range segments {
		if seg == anySegments {
			continue
		}
		if strings.Contains(seg, anySegments) {
			return pathPattern{}, errBadPattern
		}
		seg = strings.ReplaceAll(seg, "*", string(rune(starMark)))
		segments[i] = unescapeAll(strings.ReplaceAll(seg, "%2F", string(rune(slashMark))))
	}
	return pathPattern{segments}, nil
}

// match reports whether the pattern matches. A pattern that allows must match
// the literal form of the path; one that denies may match either form.
func (p pathPattern) match(path *requestPath, denies bool) bool {
	return p.matchSegments(path.literal) || denies && path.loose != nil && p.matchSegments(path.loose)
}

func (p pathPattern) matchSegments(segments []string) bool {
	return glob(len(p.segments), len(segments),
		func(i int) bool { return p.segments[i] == anySegments },
		func(i, j int) bool { return matchSegment(p.segments[i], segments[j]) },
		nil)
}

// matchSegment matches within one segment. A star does not match a slash,
// escaped or not, and a segment that is only a star does not match an empty
// one.
func matchSegment(pattern, s string) bool {
	if strings.IndexByte(pattern, starMark) < 0 {
		return pattern == s
	}
	if len(pattern) == 1 && s == "" {
		return false
	}
	return glob(len(pattern), len(s),
		func(i int) bool { return pattern[i] == starMark },
		func(i, j int) bool { return pattern[i] == s[j] },
		func(j int) bool { return s[j] == slashMark })
}

// glob matches n elements against a pattern of m. A star in the pattern matches
// any number of elements for which never is false. Only the last star needs
// backtracking, so the time is at most proportional to m times n.
func glob(m, n int, star func(int) bool, same func(i, j int) bool, never func(int) bool) bool {
	i, j, after, resume := 0, 0, -1, 0
	for j < n {
		switch {
		case i < m && star(i):
			i++
			after, resume = i, j
		case i < m && same(i, j):
			i++
			j++
		case after >= 0 && (never == nil || !never(resume)):
			resume++
			i, j = after, resume
		default:
			return false
		}
	}
	for i < m && star(i) {
		i++
	}
	return i == m
}
