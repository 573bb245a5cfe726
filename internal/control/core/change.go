package core

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// ChangeTx runs a change that takes a single transaction: it authorises the
// change, records the attempt, calls change, and records the outcome. change
// returns the subject of the record. It may be called again if the transaction
// has to be retried.
func (c *Core) ChangeTx(ctx context.Context, op ops.Op, subject string, change func(ctx context.Context, tx *store.Tx, tenant string) (subject string, err error)) error {
	who, err := guard.Principal(ctx)
	if err != nil {
		return err
	}
	return c.Change(ctx, op, guard.Subject{Subject: subject}, func(ctx context.Context) (subject string, err error) {
		err = c.Store.Update(ctx, func(tx *store.Tx) (err error) {
			subject, err = change(ctx, tx, who.Tenant)
			return err
		})
		return subject, err
	})
}

// Hinted adds a hint to an error that has none.
func Hinted(err error, hint string) error {
	var known *sandbox.Error
	if !errors.As(err, &known) || known.Hint != "" {
		return err
	}
	own := *known
	own.Hint, own.Cause = hint, err
	return &own
}

// NamesOf lists the names of some sandboxes for display, shortening long lists.
func NamesOf(all []store.Sandbox) string {
	const shown = 5
	var names []string
	for i := range all[:min(shown, len(all))] {
		names = append(names, all[i].Name)
	}
	text := strings.Join(names, ", ")
	if len(all) > shown {
		text += fmt.Sprintf(" and %d more", len(all)-shown)
	}
	return text
}
