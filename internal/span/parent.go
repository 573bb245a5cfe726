package span

import "strings"

// Parent is the span of a caller, from the header traceparent (W3C Trace
// Context).
type Parent struct {
	Trace   string // 32 hexadecimal digits, not all zero
	Span    string // 16 of them
	Sampled bool
}

// ParseParent parses a header. It accepts only the exact format of the
// recommendation.
func ParseParent(header string) (p Parent, ok bool) {
	parts := strings.Split(header, "-")
	if len(parts) < 4 || !isHex(parts[0], 2) || parts[0] == "ff" || parts[0] == "00" && len(parts) != 4 {
		return Parent{}, false
	}
	trace, span, flags := parts[1], parts[2], parts[3]
	if !isHex(trace, 32) || !isHex(span, 16) || !isHex(flags, 2) || strings.Trim(trace, "0") == "" || strings.Trim(span, "0") == "" {
		return Parent{}, false
	}
	return Parent{trace, span, strings.IndexByte("13579bdf", flags[1]) >= 0}, true
}

func isHex(s string, n int) bool {
	return len(s) == n && strings.Trim(s, "0123456789abcdef") == ""
}
