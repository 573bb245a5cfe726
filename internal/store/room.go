package store

import (
	"context"
	"fmt"
	"strings"

	"github.com/atoll-run/atoll/sandbox"
)

// The most records of a kind that one tenant has. They keep a tenant from
// filling the database that all share; quotas limit what costs more.
const (
	maxSessions   = 100_000
	maxSecrets    = 10_000
	maxKeys       = 10_000
	maxWorkspaces = 10_000
	maxTemplates  = 10_000
	maxProfiles   = 1000
	maxVersions   = 100 // of a profile; older ones are dropped
)

// room returns CodeExhausted if the tenant has as many records in a table as it
// may have. A condition can follow the name of the table.
func (tx *Tx) room(ctx context.Context, table, tenant string, most int) error {
	table, condition, more := strings.Cut(table, " WHERE ")
	if more {
		condition = " AND " + condition
	}
	var n int
	err := tx.queryRow(ctx, "SELECT count(*) FROM (SELECT 1 FROM "+table+" WHERE tenant = $1"+condition+" LIMIT $2) AS counted", tenant, most).Scan(&n)
	if err != nil || n < most {
		return err
	}
	return &sandbox.Error{
		Code: sandbox.CodeExhausted, Subject: table, Message: fmt.Sprintf("a tenant has at most %d of them", most), Hint: "remove some that are no longer used",
	}
}
