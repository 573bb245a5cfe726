package store

import (
	"context"
	"encoding/json"
	"time"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// KeptArchive is the record of a session's archive.
type KeptArchive struct {
	Tenant, Group string
	Archive       durable.Archive
	State         ArchiveState
	Tries         int // failed attempts to delete it
}

// ArchiveState is the state of an archive in its life cycle.
type ArchiveState string

// The states of archives.
const (
	ArchiveCandidate     ArchiveState = "candidate" // being written, or not yet published
	ArchiveCurrent       ArchiveState = "current"   // the session is restored from it
	ArchivePrevious      ArchiveState = "previous"
	ArchiveDeletePending ArchiveState = "delete_pending"
	ArchiveDeleting      ArchiveState = "deleting"
	ArchiveDeleteFailed  ArchiveState = "delete_failed" // will be retried
)

const (
	candidateLife = time.Hour        // after that it counts as abandoned
	deletingLife  = 10 * time.Minute // after that its daemon counts as dead
	neededLife    = time.Hour        // after which an archive that a session needed is looked at again
	firstRetry    = time.Minute
	lastRetry     = 24 * time.Hour
)

// RegisterArchive records an archive that is being written. It is deleted if it
// is not published within an hour.
func (ss Sessions) RegisterArchive(ctx context.Context, tenant, group string, a durable.Archive) error {
	data, err := json.Marshal(a)
	if err != nil {
		return err
	}
	_, err = ss.tx.exec(ctx, "INSERT INTO session_archives (tenant, ref, grp, archive_json, state, tries, due) VALUES ($1, $2, $3, $4, $5, 0, $6) ON CONFLICT DO NOTHING",
		tenant, a.Ref, group, string(data), string(ArchiveCandidate), nanos(ss.tx.Now().Add(candidateLife)))
	return err
}

// PublishArchive makes a candidate the current archive of a group. The previous
// one is kept too, and the one before is deleted. A candidate that was
// abandoned meanwhile is CodeConflict. Publishing the current archive changes
// nothing.
func (ss Sessions) PublishArchive(ctx context.Context, tenant, group, ref string) error {
	state, err := ss.archiveState(ctx, tenant, ref)
	switch {
	case err != nil || state == ArchiveCurrent:
		return err
	case state != ArchiveCandidate:
		return fail(sandbox.CodeConflict, ref, "the archive was given up before it was published")
	}
	for _, step := range []struct{ from, to ArchiveState }{{ArchivePrevious, ArchiveDeletePending}, {ArchiveCurrent, ArchivePrevious}} {
		if _, err := ss.tx.exec(ctx, "UPDATE session_archives SET state = $1, due = $2 WHERE tenant = $3 AND grp = $4 AND state = $5",
			string(step.to), nanos(ss.tx.Now()), tenant, group, string(step.from)); err != nil {
			return err
		}
	}
	_, err = ss.tx.exec(ctx, "UPDATE session_archives SET state = $1 WHERE tenant = $2 AND ref = $3", string(ArchiveCurrent), tenant, ref)
	return err
}

func (ss Sessions) archiveState(ctx context.Context, tenant, ref string) (state ArchiveState, err error) {
	err = ss.tx.queryRow(ctx, "SELECT state FROM session_archives WHERE tenant = $1 AND ref = $2"+ss.tx.s.dialect.forUpdate(), tenant, ref).Scan(&state)
	return state, missing(err, "archive", ref)
}

// RetireArchive marks a candidate for deletion, and with published also a
// current or previous archive. It reports whether the archive will be deleted.
// CodeNotFound means that there is no record of it.
func (ss Sessions) RetireArchive(ctx context.Context, tenant, ref string, published bool) (bool, error) {
	state, err := ss.archiveState(ctx, tenant, ref)
	if err != nil || !published && (state == ArchiveCurrent || state == ArchivePrevious) {
		return false, err
	}
	if state == ArchiveDeleting || state == ArchiveDeleteFailed {
		return true, nil
	}
	_, err = ss.tx.exec(ctx, "UPDATE session_archives SET state = $1, due = $2 WHERE tenant = $3 AND ref = $4", string(ArchiveDeletePending), nanos(ss.tx.Now()), tenant, ref)
	return true, err
}

// Archives lists the archives of a tenant, or of one group.
func (ss Sessions) Archives(ctx context.Context, tenant, group string) ([]KeptArchive, error) {
	rows, err := ss.tx.query(ctx, "SELECT tenant, grp, archive_json, state, tries FROM session_archives WHERE tenant = $1 AND ($2 = '' OR grp = $2) ORDER BY ref", tenant, group)
	return collect(rows, err, scanKept)
}

func scanKept(row scanner) (k KeptArchive, err error) {
	var text string
	if err := row.Scan(&k.Tenant, &k.Group, &text, &k.State, &k.Tries); err != nil {
		return k, err
	}
	return k, json.Unmarshal([]byte(text), &k.Archive)
}

// DeleteArchive claims an archive that is marked for deletion. The caller removes
// it and calls ArchiveDeleted. DeleteArchive is false if another caller has
// claimed it, or if it stays. An archive from which a session starts stays until
// the session has its own.
func (ss Sessions) DeleteArchive(ctx context.Context, tenant, ref string) (bool, error) {
	now := ss.tx.Now()
	// A session that starts from an archive is recorded under the same lock.
	if _, err := ss.tx.Tenants().Lock(ctx, tenant); err != nil {
		return false, err
	}
	needed, err := ss.startsFrom(ctx, tenant, ref)
	if err != nil {
		return false, err
	}
	if needed {
		_, err := ss.tx.exec(ctx, "UPDATE session_archives SET due = $1 WHERE tenant = $2 AND ref = $3 AND due <= $4",
			nanos(now.Add(neededLife)), tenant, ref, nanos(now))
		return false, err
	}
	n, err := ss.tx.exec(ctx, "UPDATE session_archives SET state = $1, due = $2 WHERE tenant = $3 AND ref = $4 AND due <= $5 AND state NOT IN ('current', 'previous')",
		string(ArchiveDeleting), nanos(now.Add(deletingLife)), tenant, ref, nanos(now))
	return n == 1, err
}

// startsFrom reports whether a session that has nothing saved of its own starts
// from an archive.
func (ss Sessions) startsFrom(ctx context.Context, tenant, ref string) (bool, error) {
	rows, err := ss.tx.query(ctx, "SELECT "+sessionColumns+" FROM sessions WHERE tenant = $1 AND prior_json <> ''", tenant)
	all, err := collect(rows, err, scanSession)
	for _, s := range all {
		if s.Removing || s.Prior == nil || s.Prior.Archive == nil || s.Prior.Archive.Ref != ref {
			continue
		}
		l, err := ss.Lease(ctx, tenant, s.Group)
		if err != nil || l.Archive == nil {
			return err == nil, err
		}
	}
	return false, err
}

// ArchiveDeleted records the result of a deletion. A failed deletion is retried
// with increasing delays.
func (ss Sessions) ArchiveDeleted(ctx context.Context, tenant, ref string, failed bool) error {
	if !failed {
		_, err := ss.tx.exec(ctx, "DELETE FROM session_archives WHERE tenant = $1 AND ref = $2", tenant, ref)
		return err
	}
	var tries int
	if err := ss.tx.queryRow(ctx, "SELECT tries FROM session_archives WHERE tenant = $1 AND ref = $2", tenant, ref).Scan(&tries); err != nil {
		return missing(err, "archive", ref)
	}
	wait := min(firstRetry<<min(tries, 16), lastRetry)
	_, err := ss.tx.exec(ctx, "UPDATE session_archives SET state = $1, tries = $2, due = $3 WHERE tenant = $4 AND ref = $5",
		string(ArchiveDeleteFailed), tries+1, nanos(ss.tx.Now().Add(wait)), tenant, ref)
	return err
}

// DueArchives lists archives of all tenants that should be deleted now.
func (o *Operator) DueArchives(ctx context.Context, limit int) ([]KeptArchive, error) {
	rows, err := o.tx.query(ctx, "SELECT tenant, grp, archive_json, state, tries FROM session_archives WHERE state NOT IN ('current', 'previous') AND due <= $1 ORDER BY due LIMIT $2", nanos(o.tx.Now()), limit)
	return collect(rows, err, scanKept)
}
