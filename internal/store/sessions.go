package store

import (
	"context"
	"encoding/json"
	"maps"
	"time"

	"github.com/atoll-run/atoll/internal/lease"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// Session is the stored record of a session.
type Session struct {
	durable.Session
	Tenant string
	Prior  *durable.Envelope // the envelope that a session from another installation starts from
	// Removing says that the session is being removed and must not be used.
	Removing bool
}

// storedSession is a session as JSON.
type storedSession struct {
	durable.Session
	Removing bool `json:"removing,omitempty"`
}

const sessionColumns = "tenant, id, name, grp, session_json, prior_json, created, updated"

func scanSession(row scanner) (s Session, err error) {
	var id, name, group, text, prior string
	var created, updated int64
	if err := row.Scan(&s.Tenant, &id, &name, &group, &text, &prior, &created, &updated); err != nil {
		return s, err
	}
	var stored storedSession
	if err := json.Unmarshal([]byte(text), &stored); err != nil {
		return s, err
	}
	s.Session, s.Removing = stored.Session, stored.Removing
	if prior != "" {
		if err := json.Unmarshal([]byte(prior), &s.Prior); err != nil {
			return s, err
		}
	}
	s.ID, s.Name, s.Group, s.Created, s.Updated = id, name, group, timeOf(created), timeOf(updated)
	return s, nil
}

func (s *Session) columns() (text, prior string, err error) {
	plain := storedSession{s.Session, s.Removing}
	plain.Lease = nil            // has its own table
	if len(plain.Spec.Env) > 0 { // values may be secrets and are stored separately
		plain.Spec.Env = maps.Clone(plain.Spec.Env)
		for name := range plain.Spec.Env {
			plain.Spec.Env[name] = ""
		}
	}
	data, err := json.Marshal(plain)
	if err != nil {
		return "", "", err
	}
	if s.Prior == nil {
		return string(data), "", nil
	}
	p, err := json.Marshal(s.Prior)
	return string(data), string(p), err
}

// Sessions reads and changes the sessions of tenants and the leases of their
// groups.
type Sessions struct{ tx *Tx }

// Sessions returns the methods for sessions.
func (tx *Tx) Sessions() Sessions { return Sessions{tx} }

// Create records a session. A name of an existing session of the tenant is
// CodeAlreadyExists.
func (ss Sessions) Create(ctx context.Context, s Session) (Session, error) {
	s.Created, s.Updated = ss.tx.Now(), ss.tx.Now()
	text, prior, err := s.columns()
	if err != nil {
		return s, err
	}
	if err := ss.tx.room(ctx, "sessions", s.Tenant, maxSessions); err != nil {
		return s, err
	}
	n, err := ss.tx.exec(ctx, "INSERT INTO sessions ("+sessionColumns+") VALUES ($1, $2, $3, $4, $5, $6, $7, $7) ON CONFLICT DO NOTHING",
		s.Tenant, s.ID, s.Name, s.Group, text, prior, nanos(s.Created))
	if err == nil && n == 0 {
		return s, &sandbox.Error{
			Code: sandbox.CodeAlreadyExists, Subject: s.Name, Message: "a session of that name exists",
			Hint: "attach to it, or remove it with: atoll session rm " + s.Name,
		}
	}
	return s, err
}

// Update replaces the record of a session, except its id, name and group.
func (ss Sessions) Update(ctx context.Context, s Session) error {
	text, prior, err := s.columns()
	if err != nil {
		return err
	}
	n, err := ss.tx.exec(ctx, "UPDATE sessions SET session_json = $1, prior_json = $2, updated = $3 WHERE tenant = $4 AND id = $5",
		text, prior, nanos(ss.tx.Now()), s.Tenant, s.ID)
	return oneRow(n, err, "session", s.Name)
}

// Get returns a session of a tenant by its id or name.
func (ss Sessions) Get(ctx context.Context, tenant, ref string) (Session, error) {
	s, err := scanSession(ss.tx.queryRow(ctx, "SELECT "+sessionColumns+" FROM sessions WHERE tenant = $1 AND (id = $2 OR name = $2) ORDER BY id = $2 DESC LIMIT 1", tenant, ref))
	return s, missing(err, "session", ref)
}

// List lists the sessions of a tenant by name.
func (ss Sessions) List(ctx context.Context, tenant string) ([]Session, error) {
	rows, err := ss.tx.query(ctx, "SELECT "+sessionColumns+" FROM sessions WHERE tenant = $1 ORDER BY name", tenant)
	return collect(rows, err, scanSession)
}

// InGroup lists the sessions of a group.
func (ss Sessions) InGroup(ctx context.Context, tenant, group string) ([]Session, error) {
	rows, err := ss.tx.query(ctx, "SELECT "+sessionColumns+" FROM sessions WHERE tenant = $1 AND grp = $2 ORDER BY name", tenant, group)
	return collect(rows, err, scanSession)
}

// Remove removes the record of a session. Its lease stays until its sandbox has ended.
func (ss Sessions) Remove(ctx context.Context, tenant, id string) error {
	n, err := ss.tx.exec(ctx, "DELETE FROM sessions WHERE tenant = $1 AND id = $2", tenant, id)
	return oneRow(n, err, "session", id)
}

// Lease returns the lease of a group, which is cold if it was never used.
func (ss Sessions) Lease(ctx context.Context, tenant, group string) (lease.Lease, error) {
	return ss.readLease(ctx, tenant, group, "")
}

func (ss Sessions) readLease(ctx context.Context, tenant, group, lock string) (l lease.Lease, err error) {
	var text string
	err = ss.tx.queryRow(ctx, "SELECT lease_json FROM leases WHERE tenant = $1 AND grp = $2"+lock, tenant, group).Scan(&text)
	if sandbox.CodeOf(missing(err, "lease", group)) == sandbox.CodeNotFound {
		return lease.Lease{Group: group, State: lease.Cold}, nil
	}
	if err != nil {
		return l, err
	}
	return l, json.Unmarshal([]byte(text), &l)
}

// ApplyLease applies an operation to the lease of a group and stores the
// result. Metered time is added to the usage of the given labels.
func (ss Sessions) ApplyLease(ctx context.Context, tenant, group string, op lease.Op, cfg lease.Config, labels map[string]string) (lease.Lease, lease.Effect, error) {
	// Insert the row first, so that two callers wait for each other.
	empty, err := json.Marshal(lease.Lease{Group: group, State: lease.Cold})
	if err != nil {
		return lease.Lease{}, lease.Effect{}, err
	}
	if _, err := ss.tx.exec(ctx, "INSERT INTO leases (tenant, grp, state, lease_json, updated) VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING",
		tenant, group, string(lease.Cold), string(empty), nanos(ss.tx.Now())); err != nil {
		return lease.Lease{}, lease.Effect{}, err
	}
	before, err := ss.readLease(ctx, tenant, group, ss.tx.s.dialect.forUpdate())
	if err != nil {
		return before, lease.Effect{}, err
	}
	after, effect, err := lease.Apply(before, op, cfg, ss.tx.Now())
	if err != nil || !effect.Done {
		return before, effect, err
	}
	data, err := json.Marshal(after)
	if err != nil {
		return before, effect, err
	}
	if _, err := ss.tx.exec(ctx, "UPDATE leases SET state = $1, lease_json = $2, updated = $3 WHERE tenant = $4 AND grp = $5",
		string(after.State), string(data), nanos(ss.tx.Now()), tenant, group); err != nil {
		return before, effect, err
	}
	if err := ss.noteEpochs(ctx, tenant, op, before, after); err != nil {
		return before, effect, err
	}
	if effect.Warm > 0 {
		err = ss.addWarmTime(ctx, WarmTime{Tenant: tenant, Group: group, Provider: before.Provider, Labels: labels, Hour: ss.tx.Now().Truncate(time.Hour), Warm: effect.Warm})
	}
	return after, effect, err
}

// WarmTime is how long a group had a sandbox in one hour, or, without a group,
// how long other sandboxes ran.
type WarmTime struct {
	Tenant, Group, Provider string
	Labels                  map[string]string
	Hour                    time.Time
	Warm                    time.Duration
}

func (ss Sessions) addWarmTime(ctx context.Context, u WarmTime) error {
	labels, err := marshalLabels(u.Labels)
	if err != nil {
		return err
	}
	_, err = ss.tx.exec(ctx, `INSERT INTO warm_time (tenant, grp, provider, labels_json, hour, warm) VALUES ($1, $2, $3, $4, $5, $6)
		ON CONFLICT (tenant, grp, provider, labels_json, hour) DO UPDATE SET warm = warm_time.warm + excluded.warm`,
		u.Tenant, u.Group, u.Provider, labels, nanos(u.Hour), int64(u.Warm))
	return err
}

// WarmTimes lists the warm time of a tenant's groups in the hours from
// (inclusive) to (exclusive).
func (ss Sessions) WarmTimes(ctx context.Context, tenant string, from, to time.Time) ([]WarmTime, error) {
	rows, err := ss.tx.query(ctx, "SELECT tenant, grp, provider, labels_json, hour, warm FROM warm_time WHERE tenant = $1 AND hour >= $2 AND hour < $3 ORDER BY hour, grp",
		tenant, nanos(from), nanos(to))
	return collect(rows, err, func(row scanner) (u WarmTime, err error) {
		var labels string
		var hour, warm int64
		if err := row.Scan(&u.Tenant, &u.Group, &u.Provider, &labels, &hour, &warm); err != nil {
			return u, err
		}
		u.Hour, u.Warm = timeOf(hour), time.Duration(warm)
		return u, json.Unmarshal([]byte(labels), &u.Labels)
	})
}

// Warm returns the total warm time of a tenant's groups since a full hour.
func (ss Sessions) Warm(ctx context.Context, tenant string, since time.Time) (time.Duration, error) {
	var warm int64
	err := ss.tx.queryRow(ctx, "SELECT CAST(COALESCE(SUM(warm), 0) AS BIGINT) FROM warm_time WHERE tenant = $1 AND hour >= $2", tenant, nanos(since)).Scan(&warm)
	return time.Duration(warm), err
}

// ForgetLease makes the lease of a group cold after its sandbox has ended. It
// keeps the counters, because attempts and epochs are never reused, or removes
// the lease if the group cannot exist again.
func (ss Sessions) ForgetLease(ctx context.Context, tenant, group string, remove bool) error {
	if remove {
		if _, err := ss.tx.exec(ctx, "DELETE FROM lease_epochs WHERE tenant = $1 AND grp = $2", tenant, group); err != nil {
			return err
		}
		_, err := ss.tx.exec(ctx, "DELETE FROM leases WHERE tenant = $1 AND grp = $2", tenant, group)
		return err
	}
	l, err := ss.readLease(ctx, tenant, group, ss.tx.s.dialect.forUpdate())
	if err != nil {
		return err
	}
	if err := ss.endEpoch(ctx, tenant, l, "the sessions were removed"); err != nil {
		return err
	}
	data, err := json.Marshal(lease.Lease{Group: group, State: lease.Cold, Epoch: l.Epoch, Attempt: l.Attempt, Drains: l.Drains})
	if err != nil {
		return err
	}
	_, err = ss.tx.exec(ctx, "UPDATE leases SET state = $1, lease_json = $2, updated = $3 WHERE tenant = $4 AND grp = $5",
		string(lease.Cold), string(data), nanos(ss.tx.Now()), tenant, group)
	return err
}

// LeaseOf returns the lease of a tenant with a sandbox; CodeNotFound if there
// is none.
func (ss Sessions) LeaseOf(ctx context.Context, tenant string, id sandbox.ID) (lease.Lease, error) {
	rows, err := ss.tx.query(ctx, "SELECT lease_json FROM leases WHERE tenant = $1", tenant)
	all, err := collect(rows, err, func(row scanner) (l lease.Lease, err error) {
		var text string
		if err := row.Scan(&text); err != nil {
			return l, err
		}
		return l, json.Unmarshal([]byte(text), &l)
	})
	for _, l := range all {
		if l.Sandbox == id {
			return l, nil
		}
	}
	if err == nil {
		err = fail(sandbox.CodeNotFound, string(id), "no session uses that sandbox")
	}
	return lease.Lease{}, err
}

// LeaseStates counts the leases of all tenants by state.
func (o *Operator) LeaseStates(ctx context.Context) (map[string]int64, error) {
	type count struct {
		state string
		n     int64
	}
	rows, err := o.tx.query(ctx, "SELECT state, COUNT(*) FROM leases GROUP BY state")
	counts, err := collect(rows, err, func(row scanner) (c count, err error) { return c, row.Scan(&c.state, &c.n) })
	states := make(map[string]int64, len(counts))
	for _, c := range counts {
		states[c.state] = c.n
	}
	return states, err
}

// LeaseKey identifies a lease among all tenants.
type LeaseKey struct{ Tenant, Group string }

// Leases lists the leases of all tenants that are not cold, or became so after
// a time.
func (o *Operator) Leases(ctx context.Context, since time.Time) ([]LeaseKey, error) {
	rows, err := o.tx.query(ctx, "SELECT tenant, grp FROM leases WHERE state <> 'cold' OR updated > $1 ORDER BY tenant, grp", nanos(since))
	return collect(rows, err, func(row scanner) (k LeaseKey, err error) {
		return k, row.Scan(&k.Tenant, &k.Group)
	})
}
