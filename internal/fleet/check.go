package fleet

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// checkAll asks all nodes for their load.
func (f *Fleet) checkAll(ctx context.Context) {
	f.mu.Lock()
	all := make([]*node, 0, len(f.nodes))
	for _, n := range f.nodes {
		if n.State != store.FleetRemoved || n.Lost && n.Cleared.IsZero() {
			all = append(all, n)
		}
	}
	f.mu.Unlock()
	var work sync.WaitGroup
	for _, n := range all {
		work.Go(func() { f.ask(ctx, n) })
	}
	work.Wait()
}

// Check asks a node for its load now, and returns what is known of it then.
func (f *Fleet) Check(ctx context.Context, name string) (operator.Node, error) {
	f.mu.Lock()
	n := f.nodes[name]
	f.mu.Unlock()
	if n == nil {
		return operator.Node{}, missing(name)
	}
	f.ask(ctx, n)
	return f.Node(name)
}

// ask asks a node for its load. A node that was given up and answers is cleared.
func (f *Fleet) ask(ctx context.Context, n *node) {
	n.check.Lock()
	defer n.check.Unlock()
	err := f.askOnce(ctx, n)
	if ctx.Err() != nil {
		return
	}
	f.mu.Lock()
	if err == nil {
		n.strikes, n.problem = 0, ""
	} else if n.strikes++; n.strikes >= strikes || n.seen.IsZero() || errors.Is(err, errAnother) {
		n.problem = strings.TrimPrefix(short(err), silent) // a refused request says it already
	}
	clear := err == nil && n.State == store.FleetRemoved && n.Lost && n.Cleared.IsZero()
	f.mu.Unlock()
	if clear {
		if err := f.clear(ctx, n); err != nil && ctx.Err() == nil {
			f.cfg.Logger.Error("ending the old sandboxes of a node that came back", "node", n.Name, "error", err)
		}
	}
}

// short is the message of an error, without hints.
func short(err error) string {
	if e, ok := errors.AsType[*sandbox.Error](err); ok && e.Message != "" {
		return e.Message
	}
	return err.Error()
}

// errAnother means that another daemon answers at the address of a node, or one
// that lost its state.
var errAnother = &sandbox.Error{
	Code: sandbox.CodeUnauthorized, Message: "the daemon at its address is another one, or has lost its state",
	Hint: "if its sandboxes are lost: atoll node rm --lost",
}

func (f *Fleet) askOnce(ctx context.Context, n *node) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	binding, err := n.direct.Whose(ctx)
	if err != nil {
		return err
	}
	f.mu.Lock()
	known := n.Binding
	f.mu.Unlock()
	if known == "" {
		if err := f.cfg.Store.Update(ctx, func(tx *store.Tx) error { return tx.Operator().BindFleetNode(ctx, n.Name, binding) }); err != nil {
			return err
		}
		if err := f.Reload(ctx); err != nil {
			return err
		}
	} else if known != binding {
		return errAnother
	}
	load, err := n.client.Admin().Load(ctx)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n.load, n.promise, n.seen = &load, 0, f.cfg.Store.Now()
	n.images = map[string]bool{}
	for _, name := range load.Images {
		n.images[name] = true
	}
	return nil
}

// old reports whether a sandbox is recorded as gone, or not at all. Another daemon
// may have cleared the node before this one, and sandboxes may be made there again.
func (f *Fleet) old(ctx context.Context, id sandbox.ID) (bool, error) {
	b, err := store.Read(ctx, f.cfg.Store, func(tx *store.Tx) (store.Sandbox, error) { return tx.Operator().Sandbox(ctx, id) })
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return true, nil
	}
	return err == nil && b.State == sandbox.Gone, err
}

// clear ends the old sandboxes of a node that was given up and came back. All of
// their records say that they are gone, and their sessions may be elsewhere.
func (f *Fleet) clear(ctx context.Context, n *node) error {
	ended := 0
	for found, err := range n.direct.List(ctx) {
		if err != nil {
			return err
		}
		if old, err := f.old(ctx, found.ID); err != nil || !old {
			if err != nil {
				return err
			}
			continue
		}
		sb, err := n.direct.Attach(ctx, found.ID)
		if err == nil {
			err = sb.Destroy(ctx)
		}
		if err != nil && sandbox.CodeOf(err) != sandbox.CodeGone {
			return err
		}
		ended++
	}
	err := f.cfg.Store.Update(ctx, func(tx *store.Tx) error {
		_, err := tx.Operator().ChangeFleetNode(ctx, n.Name, func(n *store.FleetNode) error {
			if n.State == store.FleetRemoved && n.Lost {
				n.Cleared = f.cfg.Store.Now()
			}
			return nil
		})
		return err
	})
	if err == nil {
		err = f.Reload(ctx)
	}
	if err == nil && f.cfg.Cleared != nil {
		f.cfg.Cleared(ctx, n.Name, ended)
	}
	return err
}
