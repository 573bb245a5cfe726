//go:build linux

package target

import "github.com/atoll-run/atoll/internal/image"

// localImages are the images of the node.
type localImages interface {
	Images() (*image.Store, error)
}
