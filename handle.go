package atoll

import "github.com/atoll-run/atoll/sandbox"

// Handle returns a handle on the sandbox with an id, without asking whether
// there is one: the first use finds out. It is for programs that remember ids.
func Handle(c *Client, id sandbox.ID) *Sandbox {
	return &Sandbox{client: c, info: sandbox.Sandbox{ID: id, Name: string(id)}}
}
