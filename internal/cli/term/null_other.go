//go:build !linux

package term

// IsNull reports whether our input is nothing.
func IsNull(in any) bool { return in == nil }
