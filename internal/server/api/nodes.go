package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Nodes manages the daemons on which this one makes sandboxes. It is for the
// owner of the machine.
type Nodes interface {
	Nodes(ctx context.Context) ([]operator.Node, error)
	// Node asks a node for its load first.
	Node(ctx context.Context, name string) (operator.Node, error)
	UpdateNode(ctx context.Context, name string, c operator.NodeChange) (operator.Node, error)
	// DrainNode moves sessions to other nodes. With force, it ends other sandboxes.
	DrainNode(ctx context.Context, name string, force bool) (operator.NodeDrained, error)
	// RemoveNode removes a node without sandboxes, or gives up a lost one.
	RemoveNode(ctx context.Context, name string, lost bool) error
}

// NodeRef names a node.
type NodeRef struct {
	Node string `path:"node" maxLength:"63" doc:"name of the node"`
}

type changeNodeInput struct {
	NodeRef
	Body operator.NodeChange
}

type drainNodeInput struct {
	NodeRef
	Body operator.NodeDrain
}

type removeNodeInput struct {
	NodeRef
	Lost bool `query:"lost" doc:"give up a node that does not answer and never comes back, with its sandboxes"`
}

type loadOutput struct{ Body operator.Load }

type nodeOutput struct{ Body operator.Node }

type nodesOutput struct {
	Body struct {
		Nodes []operator.Node `json:"nodes" doc:"by name"`
	}
}

type drainedOutput struct{ Body operator.NodeDrained }

func (a *API) nodes() {
	const tag, base, one = "Nodes", "/v1/nodes", "/v1/nodes/{node}"
	huma.Register(a.huma, operation("getLoad", http.MethodGet, "/v1/load", tag, "Get what the daemon has room for; sandboxes and images of other tenants are left out", ops.LoadGet),
		func(ctx context.Context, _ *none) (*loadOutput, error) {
			l, err := a.services.Machine.Load(ctx)
			return &loadOutput{l}, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("listNodes", http.MethodGet, base, tag, "List the daemons on which this one makes sandboxes; only for the owner of the machine", ops.NodeList),
		func(ctx context.Context, _ *none) (*nodesOutput, error) {
			all, err := a.services.Nodes.Nodes(ctx)
			out := &nodesOutput{}
			out.Body.Nodes = append([]operator.Node{}, all...)
			return out, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("getNode", http.MethodGet, one, tag, "Ask a node for its load, and describe it; only for the owner of the machine", ops.NodeList),
		func(ctx context.Context, in *NodeRef) (*nodeOutput, error) {
			n, err := a.services.Nodes.Node(ctx, in.Node)
			return &nodeOutput{n}, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("updateNode", http.MethodPatch, one, tag, "Cordon a node, or take it back; only for the owner of the machine", ops.NodeChange),
		func(ctx context.Context, in *changeNodeInput) (*nodeOutput, error) {
			n, err := a.services.Nodes.UpdateNode(ctx, in.Node, in.Body)
			return &nodeOutput{n}, a.problem(ctx, err)
		})
	huma.Register(a.huma, operation("drainNode", http.MethodPost, one+"/drain", tag, "Move the sessions of a node to others; only for the owner of the machine", ops.NodeDrain),
		func(ctx context.Context, in *drainNodeInput) (*drainedOutput, error) {
			d, err := a.services.Nodes.DrainNode(ctx, in.Node, in.Body.Force)
			return &drainedOutput{d}, a.problem(ctx, err)
		})
	remove := operation("removeNode", http.MethodDelete, one, tag, "Remove a node without sandboxes, or give up a lost one; only for the owner of the machine", ops.NodeRemove)
	remove.DefaultStatus = http.StatusNoContent
	huma.Register(a.huma, remove, func(ctx context.Context, in *removeNodeInput) (*struct{}, error) {
		return nil, a.problem(ctx, a.services.Nodes.RemoveNode(ctx, in.Node, in.Lost))
	})
}
