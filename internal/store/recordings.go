package store

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

// Recording is the record of a recording. Its content is in the blob store.
type Recording struct {
	viewing.Recording
	Tenant string
	// Node is the daemon that records, or that has to store the rest.
	Node string
}

const recordingColumns = "tenant, node, kept, recording_json"

func scanRecording(row scanner) (r Recording, err error) {
	var text string
	var kept int64
	if err := row.Scan(&r.Tenant, &r.Node, &kept, &text); err != nil {
		return r, err
	}
	err = json.Unmarshal([]byte(text), &r.Recording)
	r.Size = kept
	return r, err
}

// Recordings reads and changes the records of recordings.
type Recordings struct{ tx *Tx }

// Recordings returns the methods for recordings.
func (tx *Tx) Recordings() Recordings { return Recordings{tx} }

// Create records a new recording. CodeExhausted: the tenant has as many running
// ones as it may, or keeps as many bytes.
func (rs Recordings) Create(ctx context.Context, r Recording, maxRunning int, maxBytes int64) error {
	if _, err := rs.tx.Tenants().Lock(ctx, r.Tenant); err != nil {
		return err
	}
	var running int
	var bytes int64
	err := rs.tx.queryRow(ctx, "SELECT COALESCE(SUM(CASE WHEN state = 'recording' THEN 1 ELSE 0 END), 0), COALESCE(SUM(kept), 0) FROM recordings WHERE tenant = $1", r.Tenant).Scan(&running, &bytes)
	if err != nil {
		return err
	}
	switch {
	case running >= maxRunning:
		return &sandbox.Error{
			Code: sandbox.CodeExhausted, Subject: "recordings", Message: fmt.Sprintf("%d recordings run, which is the limit", running),
			Hint: "stop a recording with: atoll record stop ID",
		}
	case bytes >= maxBytes:
		return &sandbox.Error{
			Code: sandbox.CodeExhausted, Subject: "recordings", Message: fmt.Sprintf("the recordings that are kept have %d bytes, and the limit is %d", bytes, maxBytes),
			Hint: "remove some with: atoll record rm ID",
		}
	}
	data, err := json.Marshal(r.Recording)
	if err != nil {
		return err
	}
	_, err = rs.tx.exec(ctx, "INSERT INTO recordings (tenant, id, created, sandbox, name, session, state, node, kept, recording_json) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
		r.Tenant, r.ID, nanos(r.Started), string(r.Sandbox), r.Name, r.Session, string(r.State), r.Node, r.Size, string(data))
	return err
}

// Set replaces the record of a recording. CodeNotFound: it was removed.
func (rs Recordings) Set(ctx context.Context, r Recording) error {
	data, err := json.Marshal(r.Recording)
	if err != nil {
		return err
	}
	n, err := rs.tx.exec(ctx, "UPDATE recordings SET state = $1, kept = $2, recording_json = $3 WHERE tenant = $4 AND id = $5", string(r.State), r.Size, string(data), r.Tenant, r.ID)
	if err == nil && n == 0 {
		return fail(sandbox.CodeNotFound, r.ID, "no such recording")
	}
	return err
}

// Get returns a recording.
func (rs Recordings) Get(ctx context.Context, tenant, id string) (Recording, error) {
	r, err := scanRecording(rs.tx.queryRow(ctx, "SELECT "+recordingColumns+" FROM recordings WHERE tenant = $1 AND id = $2", tenant, id))
	return r, missing(err, "recording", id)
}

// List lists the recordings of a tenant, newest first; only those of one sandbox
// if its ID is not empty. next is the cursor of the next page, empty at the end.
func (rs Recordings) List(ctx context.Context, tenant string, only sandbox.ID, q viewing.RecordingQuery) (all []Recording, next string, err error) {
	limit, err := Page{Limit: q.Limit}.limit()
	if err != nil {
		return nil, "", err
	}
	c := conditions{}
	c.add("tenant = ?", tenant)
	if q.Cursor != "" {
		created, id, err := parseCursor(q.Cursor)
		if err != nil {
			return nil, "", err
		}
		c.add("(created, id) < (?, ?)", created, id)
	}
	if only != "" {
		c.add("sandbox = ?", string(only))
	}
	if q.Sandbox != "" {
		c.add("(sandbox = ? OR name = ?)", q.Sandbox, q.Sandbox)
	}
	if q.Session != "" {
		c.add("session = ?", q.Session)
	}
	rows, err := rs.tx.query(ctx, "SELECT "+recordingColumns+" FROM recordings WHERE "+c.String()+" ORDER BY created DESC, id DESC LIMIT "+strconv.Itoa(limit+1), c.args...)
	all, err = collect(rows, err, scanRecording)
	if err != nil || len(all) <= limit {
		return all, "", err
	}
	last := all[limit-1]
	return all[:limit], formatCursor(nanos(last.Started), last.ID), nil
}

// Delete removes the record of a recording. It succeeds if there is none.
func (rs Recordings) Delete(ctx context.Context, tenant, id string) error {
	_, err := rs.tx.exec(ctx, "DELETE FROM recordings WHERE tenant = $1 AND id = $2", tenant, id)
	return err
}

// UnfinishedRecordings lists the recordings of a node that are not stored
// completely, and those that could not be stored.
func (o *Operator) UnfinishedRecordings(ctx context.Context, node string) ([]Recording, error) {
	rows, err := o.tx.query(ctx, "SELECT "+recordingColumns+" FROM recordings WHERE node = $1 AND state <> 'available' ORDER BY created, id", node)
	return collect(rows, err, scanRecording)
}
