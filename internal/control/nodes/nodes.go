// Package nodes manages the node daemons on which this daemon makes sandboxes.
// Only the owner of the machine may do that.
package nodes

import (
	"context"
	"fmt"

	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Fleet knows the nodes.
type Fleet interface {
	Nodes() []operator.Node
	// Check asks a node for its load now. CodeNotFound: there is no such node.
	Check(ctx context.Context, name string) (operator.Node, error)
	Node(name string) (operator.Node, error)
	// Reload reads what was decided about the nodes.
	Reload(ctx context.Context) error
}

// Sandboxes ends sandboxes.
type Sandboxes interface {
	Destroy(ctx context.Context, ref string) error
	// GiveUp records that all sandboxes of a provider are gone.
	GiveUp(ctx context.Context, provider string) error
}

// Sessions moves sessions.
type Sessions interface {
	// Evacuate moves the sessions of a node to others, one by one. kept are the
	// sandboxes of sessions that could not be moved, with reasons.
	Evacuate(ctx context.Context, provider string) (moved []operator.NodeMoved, kept []operator.NodeSandbox, err error)
}

// Service manages nodes. It is safe for concurrent use.
type Service struct {
	*core.Core
	sandboxes Sandboxes
	fleet     Fleet // nil: there are no nodes
	sessions  Sessions
}

// New returns a Service. Without Connect, every method fails with CodeNotFound.
func New(c *core.Core, sandboxes Sandboxes) *Service { return &Service{Core: c, sandboxes: sandboxes} }

// Connect sets the nodes. Call it before the first request.
func (s *Service) Connect(fleet Fleet, sessions Sessions) { s.fleet, s.sessions = fleet, sessions }

var errOff = &sandbox.Error{
	Code: sandbox.CodeNotFound, Subject: "nodes", Message: "this daemon has no nodes", Hint: "name some with: atoll up --node URL --node-key-file FILE",
}

// asOwner runs an operation for the owner of the machine.
func (s *Service) asOwner(ctx context.Context, op ops.Op, name string, act func(context.Context) error) error {
	return s.AsOwner(ctx, op, name, func(ctx context.Context) error {
		if s.fleet == nil {
			return errOff
		}
		return act(ctx)
	})
}

// Nodes lists the nodes, by name.
func (s *Service) Nodes(ctx context.Context) (all []operator.Node, err error) {
	err = s.asOwner(ctx, ops.NodeList, "", func(ctx context.Context) error {
		all = s.fleet.Nodes()
		for i := range all {
			if err := s.count(ctx, &all[i]); err != nil {
				return err
			}
		}
		return nil
	})
	return all, err
}

func (s *Service) count(ctx context.Context, n *operator.Node) error {
	sandboxes, err := s.on(ctx, n.Provider)
	n.Placed = len(sandboxes)
	return err
}

// on returns the sandboxes on a node.
func (s *Service) on(ctx context.Context, provider string) ([]store.Sandbox, error) {
	return store.Read(ctx, s.Store, func(tx *store.Tx) ([]store.Sandbox, error) { return tx.Operator().SandboxesOf(ctx, provider) })
}

// Node asks a node for its load, and returns its state.
func (s *Service) Node(ctx context.Context, name string) (n operator.Node, err error) {
	err = s.asOwner(ctx, ops.NodeList, name, func(ctx context.Context) error {
		if n, err = s.fleet.Check(ctx, name); err != nil {
			return err
		}
		return s.count(ctx, &n)
	})
	return n, err
}

// UpdateNode cordons a node, or takes it back.
func (s *Service) UpdateNode(ctx context.Context, name string, c operator.NodeChange) (n operator.Node, err error) {
	err = s.asOwner(ctx, ops.NodeChange, name, func(ctx context.Context) error {
		if c.Cordoned != nil {
			change := takeBack
			if *c.Cordoned {
				change = cordon
			}
			if err := s.change(ctx, name, change); err != nil {
				return err
			}
		}
		if n, err = s.fleet.Node(name); err != nil {
			return err
		}
		return s.count(ctx, &n)
	})
	return n, err
}

// change changes what is decided about a node.
func (s *Service) change(ctx context.Context, name string, change func(*store.FleetNode) error, checks ...func(*store.Tx) error) error {
	if _, err := s.fleet.Node(name); err != nil {
		return err
	}
	err := s.Store.Update(ctx, func(tx *store.Tx) error {
		for _, check := range checks {
			if err := check(tx); err != nil {
				return err
			}
		}
		_, err := tx.Operator().ChangeFleetNode(ctx, name, change)
		return err
	})
	return core.FirstError(err, s.fleet.Reload(context.WithoutCancel(ctx)))
}

func cordon(n *store.FleetNode) error {
	if n.State == store.FleetRemoved {
		return removed(n.Name)
	}
	n.State = store.FleetCordoned
	return nil
}

func removed(name string) error {
	return &sandbox.Error{Code: sandbox.CodeConflict, Subject: name, Message: "the node was removed", Hint: "take it back with: atoll node uncordon " + name}
}

// takeBack makes a node get new sandboxes again.
func takeBack(n *store.FleetNode) error {
	if n.Lost && n.Cleared.IsZero() {
		return &sandbox.Error{
			Code: sandbox.CodeConflict, Subject: n.Name, Message: "the node was given up, and its old sandboxes were not ended yet",
			Hint: "start it, and wait until the log has node.cleared; a node without its old state needs a new name",
		}
	}
	*n = store.FleetNode{Name: n.Name, URL: n.URL, Binding: n.Binding, Added: n.Added, State: store.FleetActive}
	return nil
}

// DrainNode moves the sessions of a node to others. Sandboxes without a session
// are kept, unless force is set. The node stays cordoned.
func (s *Service) DrainNode(ctx context.Context, name string, force bool) (out operator.NodeDrained, err error) {
	out = operator.NodeDrained{Node: name, Moved: []operator.NodeMoved{}, Kept: []operator.NodeSandbox{}, Ended: []operator.NodeSandbox{}}
	err = s.asOwner(ctx, ops.NodeDrain, name, func(ctx context.Context) error {
		err := s.change(ctx, name, func(n *store.FleetNode) error {
			if n.State == store.FleetRemoved {
				return removed(name)
			}
			n.State = store.FleetDraining
			return nil
		})
		if err != nil {
			return err
		}
		err = s.drain(ctx, &out, force)
		return core.FirstError(err, s.change(context.WithoutCancel(ctx), name, func(n *store.FleetNode) error {
			if n.State == store.FleetDraining {
				n.State = store.FleetCordoned
			}
			return nil
		}))
	})
	return out, err
}

func (s *Service) drain(ctx context.Context, out *operator.NodeDrained, force bool) error {
	n, err := s.fleet.Node(out.Node)
	if err != nil {
		return err
	}
	moved, kept, err := s.sessions.Evacuate(ctx, n.Provider)
	if err != nil {
		return err
	}
	out.Moved = append(out.Moved, moved...)
	of := map[sandbox.ID]operator.NodeSandbox{}
	for _, k := range kept {
		of[k.Sandbox] = k
	}
	left, err := s.on(ctx, n.Provider)
	for _, b := range left {
		k, session := of[b.ID]
		if !session {
			k = operator.NodeSandbox{Tenant: b.Tenant, Sandbox: b.ID, Reason: "it belongs to no session"}
		}
		k.Name = b.Name
		if force && !session {
			tenant := guard.WithOwner(ctx, b.Tenant)
			failed := s.sandboxes.Destroy(tenant, string(b.ID))
			if failed == nil {
				k.Reason = ""
				out.Ended = append(out.Ended, k)
				continue
			}
			k.Reason = failed.Error()
		}
		out.Kept = append(out.Kept, k)
	}
	return err
}

// RemoveNode removes a node without sandboxes. With lost, it gives up a node that
// does not answer: its sandboxes are recorded as gone, and if it comes back, they
// are ended. A removal can be repeated.
func (s *Service) RemoveNode(ctx context.Context, name string, lost bool) error {
	return s.asOwner(ctx, ops.NodeRemove, name, func(ctx context.Context) error {
		n, err := s.fleet.Node(name)
		if err != nil {
			return err
		}
		if lost {
			return s.giveUp(ctx, n)
		}
		if n.State == operator.NodeRemoved {
			return nil
		}
		if err := s.change(ctx, name, cordon); err != nil { // so that no sandbox is placed there meanwhile
			return err
		}
		return s.change(ctx, name, s.remove(false), func(tx *store.Tx) error {
			left, err := tx.Operator().SandboxesOf(ctx, n.Provider)
			if err != nil || len(left) == 0 {
				return err
			}
			return &sandbox.Error{
				Code: sandbox.CodeConflict, Subject: name, Message: fmt.Sprintf("the node has %s, such as %s of the tenant %s", sandboxesOf(len(left)), left[0].Name, left[0].Tenant),
				Hint: "move or end them with: atoll node drain " + name + "; if the node never comes back: atoll node rm --lost " + name,
			}
		})
	})
}

func sandboxesOf(n int) string {
	if n == 1 {
		return "a sandbox"
	}
	return fmt.Sprint(n, " sandboxes")
}

func (s *Service) remove(lost bool) func(*store.FleetNode) error {
	return func(n *store.FleetNode) error {
		if n.State != store.FleetRemoved {
			n.State, n.Lost, n.Removed = store.FleetRemoved, lost, s.Store.Now()
		}
		return nil
	}
}

// giveUp removes a node on the operator's word that it never comes back.
func (s *Service) giveUp(ctx context.Context, n operator.Node) error {
	if n.State != operator.NodeRemoved {
		now, err := s.fleet.Check(ctx, n.Name)
		if err != nil {
			return err
		}
		if now.State != operator.NodeUnreachable {
			return &sandbox.Error{
				Code: sandbox.CodeConflict, Subject: n.Name, Message: "the node answers, so it is not lost",
				Hint: "move its sessions first with: atoll node drain " + n.Name,
			}
		}
		if err := s.change(ctx, n.Name, s.remove(true)); err != nil {
			return err
		}
	}
	return s.sandboxes.GiveUp(ctx, n.Provider)
}
