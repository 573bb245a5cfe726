//go:build !linux

package cli

// isNull reports whether our input is nothing.
func isNull(in any) bool { return in == nil }
