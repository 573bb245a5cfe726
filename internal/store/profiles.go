package store

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/durable"
)

// Profile is a stored profile. Its document names secrets and holds none.
type Profile struct {
	durable.StoredProfile
	Tenant string
}

const profileColumns = "tenant, name, version, doc, created, updated"

func scanProfile(row scanner) (p Profile, err error) {
	var doc string
	var created, updated int64
	if err := row.Scan(&p.Tenant, &p.Name, &p.Version, &doc, &created, &updated); err != nil {
		return p, err
	}
	p.Created, p.Updated = timeOf(created), timeOf(updated)
	err = json.Unmarshal([]byte(doc), &p.Profile)
	p.Profile.Name = p.Name
	return p, err
}

// Profiles reads and changes the profiles of tenants, and records which
// sandboxes use them.
type Profiles struct{ tx *Tx }

// Profiles returns the methods for profiles.
func (tx *Tx) Profiles() Profiles { return Profiles{tx} }

// ForNetwork returns the profile of a network: a stored one, or its inline
// rules.
func (ps Profiles) ForNetwork(ctx context.Context, tenant string, n sandbox.Network) (sandbox.Profile, error) {
	if n.Profile == "" {
		local, _ := n.Local()
		return local, nil
	}
	stored, err := ps.Get(ctx, tenant, n.Profile)
	return stored.Profile, err
}

// Create records the first version of a profile. A name that is in use is
// CodeAlreadyExists.
func (ps Profiles) Create(ctx context.Context, tenant string, doc sandbox.Profile) (Profile, error) {
	p := Profile{durable.StoredProfile{Name: doc.Name, Version: 1, Profile: doc, Created: ps.tx.Now(), Updated: ps.tx.Now()}, tenant}
	text, err := json.Marshal(doc)
	if err != nil {
		return p, err
	}
	if err := ps.tx.room(ctx, "profiles", tenant, maxProfiles); err != nil {
		return p, err
	}
	n, err := ps.tx.exec(ctx, `INSERT INTO profiles (tenant, name, version, doc, created, updated) VALUES ($1, $2, 1, $3, $4, $4)
		ON CONFLICT (tenant, name) DO NOTHING`, tenant, doc.Name, string(text), nanos(p.Created))
	if err != nil {
		return p, err
	}
	if n == 0 {
		return p, &sandbox.Error{
			Code: sandbox.CodeAlreadyExists, Subject: doc.Name, Message: "a profile of that name exists",
			Hint: "change it with: atoll profile apply " + doc.Name,
		}
	}
	return p, ps.addVersion(ctx, &p, string(text))
}

// Update records a new version of a profile that is at version expect, 0 for
// any. An unchanged document makes no new version.
func (ps Profiles) Update(ctx context.Context, tenant string, expect int64, doc sandbox.Profile) (Profile, error) {
	old, err := ps.lock(ctx, tenant, doc.Name)
	if err != nil {
		return old, err
	}
	if expect != 0 && old.Version != expect {
		return old, fail(sandbox.CodeConflict, doc.Name, "is at version %d, not %d", old.Version, expect)
	}
	text, err := json.Marshal(doc)
	if err != nil {
		return old, err
	}
	before, err := json.Marshal(old.Profile)
	if err != nil || string(before) == string(text) {
		return old, err
	}
	p := old
	p.Profile, p.Version, p.Updated = doc, old.Version+1, ps.tx.Now()
	if _, err := ps.tx.exec(ctx, "UPDATE profiles SET version = $1, doc = $2, updated = $3 WHERE tenant = $4 AND name = $5",
		p.Version, string(text), nanos(p.Updated), tenant, p.Name); err != nil {
		return old, err
	}
	return p, ps.addVersion(ctx, &p, string(text))
}

// addVersion records a version and drops the oldest beyond maxVersions.
func (ps Profiles) addVersion(ctx context.Context, p *Profile, doc string) error {
	if _, err := ps.tx.exec(ctx, "DELETE FROM profile_versions WHERE tenant = $1 AND name = $2 AND version <= $3", p.Tenant, p.Name, p.Version-maxVersions); err != nil {
		return err
	}
	_, err := ps.tx.exec(ctx, "INSERT INTO profile_versions (tenant, name, version, doc, created) VALUES ($1, $2, $3, $4, $5)",
		p.Tenant, p.Name, p.Version, doc, nanos(p.Updated))
	return err
}

func (ps Profiles) lock(ctx context.Context, tenant, name string) (Profile, error) {
	p, err := scanProfile(ps.tx.queryRow(ctx, "SELECT "+profileColumns+" FROM profiles WHERE tenant = $1 AND name = $2"+ps.tx.s.dialect.forUpdate(), tenant, name))
	return p, missing(err, "profile", name)
}

// Get returns a profile as it is now.
func (ps Profiles) Get(ctx context.Context, tenant, name string) (Profile, error) {
	p, err := scanProfile(ps.tx.queryRow(ctx, "SELECT "+profileColumns+" FROM profiles WHERE tenant = $1 AND name = $2", tenant, name))
	return p, missing(err, "profile", name)
}

// Version returns a profile as it was at a version.
func (ps Profiles) Version(ctx context.Context, tenant, name string, version int64) (Profile, error) {
	p, err := scanProfile(ps.tx.queryRow(ctx, `SELECT tenant, name, version, doc, created, created FROM profile_versions
		WHERE tenant = $1 AND name = $2 AND version = $3`, tenant, name, version))
	return p, missing(err, "version of the profile", name)
}

// List lists the profiles of a tenant by name.
func (ps Profiles) List(ctx context.Context, tenant string) ([]Profile, error) {
	rows, err := ps.tx.query(ctx, "SELECT "+profileColumns+" FROM profiles WHERE tenant = $1 ORDER BY name", tenant)
	all, err := collect(rows, err, scanProfile)
	if err != nil {
		return nil, err
	}
	uses := map[string]int{}
	rows, err = ps.tx.query(ctx, `SELECT u.profile FROM profile_uses u JOIN sandboxes s ON s.id = u.sandbox
		WHERE u.tenant = $1 AND s.state <> 'gone'`, tenant)
	names, err := collect(rows, err, scanString)
	for _, n := range names {
		uses[n]++
	}
	for i := range all {
		all[i].Uses = uses[all[i].Name]
	}
	return all, err
}

func scanString(row scanner) (s string, err error) { return s, row.Scan(&s) }

// Use records that a new sandbox uses a profile. The profile cannot be removed
// while the sandbox exists.
func (ps Profiles) Use(ctx context.Context, tenant string, sb sandbox.ID, name string) error {
	if _, err := ps.lock(ctx, tenant, name); err != nil {
		return err
	}
	_, err := ps.tx.exec(ctx, "INSERT INTO profile_uses (sandbox, tenant, profile) VALUES ($1, $2, $3)", string(sb), tenant, name)
	return err
}

// Users returns the sandboxes that use a profile and are not gone.
func (ps Profiles) Users(ctx context.Context, tenant, name string) ([]Sandbox, error) {
	rows, err := ps.tx.query(ctx, "SELECT "+sandboxColumns+` FROM sandboxes WHERE tenant = $1 AND state <> 'gone'
		AND id IN (SELECT sandbox FROM profile_uses WHERE tenant = $1 AND profile = $2) ORDER BY name`, tenant, name)
	return collect(rows, err, scanSandbox)
}

// InlineUsers returns the sandboxes that have inline rules and are not gone.
func (ps Profiles) InlineUsers(ctx context.Context, tenant string) ([]Sandbox, error) {
	rows, err := ps.tx.query(ctx, "SELECT "+sandboxColumns+` FROM sandboxes WHERE tenant = $1 AND state <> 'gone'
		AND spec_json LIKE '%"inline":{%' ORDER BY name`, tenant)
	all, err := collect(rows, err, scanSandbox)
	return slices.DeleteFunc(all, func(b Sandbox) bool { return b.Spec.Network.Inline == nil }), err
}

// Remove removes a profile with all its versions. If a sandbox uses it, the
// error is CodeConflict.
func (ps Profiles) Remove(ctx context.Context, tenant, name string) error {
	if _, err := ps.lock(ctx, tenant, name); err != nil {
		return err
	}
	users, err := ps.Users(ctx, tenant, name)
	if err != nil {
		return err
	}
	if len(users) > 0 {
		return inUse("profile", name, users)
	}
	for _, query := range []string{
		"DELETE FROM profile_uses WHERE tenant = $1 AND profile = $2",
		"DELETE FROM profile_versions WHERE tenant = $1 AND name = $2",
		"DELETE FROM profiles WHERE tenant = $1 AND name = $2",
	} {
		if _, err := ps.tx.exec(ctx, query, tenant, name); err != nil {
			return err
		}
	}
	return nil
}

// inUse returns an error that names some of the sandboxes that use a resource.
func inUse(what, name string, users []Sandbox) error {
	const shown = 5
	var names []string
	for _, b := range users[:min(shown, len(users))] {
		names = append(names, b.Name)
	}
	if len(users) > shown {
		names = append(names, "…")
	}
	return &sandbox.Error{
		Code: sandbox.CodeConflict, Subject: clip(name), Message: "the " + what + " is in use by " + strings.Join(names, ", "),
		Hint: "remove those sandboxes first",
	}
}
