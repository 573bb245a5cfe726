//go:build !unix

package roundtrip

import "net"

// quiet never knows here, so that connections are used once.
func quiet(net.Conn) bool { return false }
