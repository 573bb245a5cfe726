package policy

import (
	"errors"
	"strings"
)

// maxPath bounds the path of a request, far above what servers accept.
const maxPath = 32 << 10

// The ways in which a path can be wrong. Paths that two programs could
// interpret differently are refused.
var (
	errLongPath  = errors.New("the path is too long")
	errRelative  = errors.New("the path does not begin with a slash")
	errBadEscape = errors.New("the path contains an invalid percent escape")
	errBadByte   = errors.New("the path contains a control character, a backslash or a byte that must be escaped")
	errDotDot    = errors.New("the path climbs with \"..\" behind an escape")
)

// NormalizePath returns the one form of the path of a request, in its escaped
// form and without a query, in which it is matched and must be forwarded:
// escapes that are not needed are undone, those that are have upper case
// digits, empty segments and "." are left out, and ".." takes away the segment
// before it. Normalising again changes nothing.
//
// A path that servers are known to read differently is refused: one with
// control characters or backslashes, escaped or not, or with a ".." that
// appears only after an escape, a second escape or a path parameter is undone.
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
		if i == len(segments)-1 && len(out) > 0 { // a directory was meant
			out = append(out, "")
		}
	}
	return "/" + strings.Join(out, "/"), nil
}

// unescapeNeedless undoes the escapes of unreserved characters, and gives
// everything else one form.
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

// escaped returns the byte that an escape at the beginning of s stands for.
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

// delimiter reports whether a byte that is not unreserved may stand in a path
// as it is.
func delimiter(c byte) bool { return strings.IndexByte("/!$&'()*+,;=:@[]", c) >= 0 }

// maxUnescape is how often servers in a row may undo escapes.
const maxUnescape = 4

// checkSegment refuses a segment that a server behind another could read as
// "..", or as something that ends it.
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

// unescapeAll undoes every escape once, and leaves what is none.
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

// A path is matched with its escapes undone, because that is how the server
// reads it. Two bytes that no path holds stand for what then looks alike.
const (
	starMark  = 0 // "*" in a pattern; a literal one is written %2A
	slashMark = 1 // an escaped slash, which separates no segments
)

// requestPath is a path in the forms in which it is matched.
type requestPath struct {
	normal string
	// literal holds the segments as a server reads them that does what the
	// standards say.
	literal []string
	// loose holds them as a server does that undoes escapes again and again,
	// takes an escaped slash for a slash, and drops path parameters.
	loose []string
}

// parseRequestPath normalises a path and takes it apart.
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

// anySegments is the segment that stands for any number of segments.
const anySegments = "**"

var errBadPattern = errors.New("\"**\" must be alone between two slashes")

// parsePath reads a pattern of paths, which is normalised as the paths are
// that it is compared with.
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

// match reports whether the pattern matches. One that allows wants the literal
// reading of the path; one that denies is content with any.
func (p pathPattern) match(path *requestPath, denies bool) bool {
	return p.matchSegments(path.literal) || denies && path.loose != nil && p.matchSegments(path.loose)
}

func (p pathPattern) matchSegments(segments []string) bool {
	return glob(len(p.segments), len(segments),
		func(i int) bool { return p.segments[i] == anySegments },
		func(i, j int) bool { return matchSegment(p.segments[i], segments[j]) },
		nil)
}

// matchSegment compares within one segment. A star is never a slash, not even
// an escaped one, and alone it is not nothing.
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

// glob matches n elements against a pattern of m, some of which are stars that
// stand for any number of elements, but none of those in never. Only the last
// star ever has to be tried again, so that the time grows with m times n at
// worst.
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
