//go:build !linux

package target

// localImages are the images of the node. A client has none.
type localImages interface{}
