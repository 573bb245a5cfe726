package atoll

import "github.com/atoll-run/atoll/sandbox"

// Handle returns a handle on the sandbox with that id. It makes no request: if
// there is no such sandbox, the first method call returns CodeNotFound. It is
// for programs that store ids.
func Handle(c *Client, id sandbox.ID) *Sandbox {
	return &Sandbox{client: c, info: sandbox.Sandbox{ID: id, Name: string(id)}}
}
