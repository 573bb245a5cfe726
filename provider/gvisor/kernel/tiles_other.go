//go:build !amd64

package kernel

// forgetTiles is for processors that have AMX.
func forgetTiles() {}
