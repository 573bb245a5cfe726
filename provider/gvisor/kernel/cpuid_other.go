//go:build !amd64

package kernel

// leaveCPUID has nothing to do: there is no such instruction.
func leaveCPUID() {}
