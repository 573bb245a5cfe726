package key_test

import (
	"context"
	"errors"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

func TestMain(m *testing.M) { os.Exit(storetest.Main(m)) }

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v (%v)", err, errors.Unwrap(err))
	}
}

func newKey(t *testing.T, s *store.Store, tenant string, n operator.NewKey) (token string, k operator.Key) {
	t.Helper()
	n.Tenant = tenant
	ok(t, s.Update(t.Context(), func(tx *store.Tx) (err error) {
		if _, err = tx.Tenants().Ensure(t.Context(), tenant); err == nil {
			k, err = key.NewRing(s).Create(t.Context(), tx, n)
		}
		return err
	}))
	return k.Token, k
}

func TestAuthenticate(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		now := time.Unix(1_800_000_000, 0)
		s := open(store.Options{Now: func() time.Time { return now }})
		ring := key.NewRing(s)
		token, k := newKey(t, s, "acme", operator.NewKey{Name: "ci", Verbs: []string{"exec", "read", "exec"}, Expires: time.Hour})
		p, err := ring.Authenticate(t.Context(), token)
		ok(t, err)
		if p.Tenant != "acme" || p.Key != k.ID || len(p.Verbs) != 2 || p.Verbs[0] != key.Read {
			t.Errorf("the bearer is %+v", p)
		}
		other, _ := newKey(t, s, "rival", operator.NewKey{Verbs: []string{"admin"}})
		revoked, rk := newKey(t, s, "acme", operator.NewKey{Verbs: []string{"read"}})
		update := func(f func(tx *store.Tx) error) { t.Helper(); ok(t, s.Update(t.Context(), f)) }
		err = s.Update(t.Context(), func(tx *store.Tx) error { return tx.Tenants().RevokeKey(t.Context(), "rival", rk.ID) })
		if sandbox.CodeOf(err) != sandbox.CodeNotFound {
			t.Errorf("another tenant revokes: %v", err)
		}
		_, err = ring.Authenticate(t.Context(), revoked)
		ok(t, err)
		update(func(tx *store.Tx) error { return tx.Tenants().RevokeKey(t.Context(), "acme", rk.ID) })
		update(func(tx *store.Tx) error { return tx.Tenants().RevokeKey(t.Context(), "acme", rk.ID) })

		refused := func(name, token string, why error) {
			t.Helper()
			p, err := ring.Authenticate(t.Context(), token)
			if !errors.Is(err, why) || p.Tenant != "" {
				t.Errorf("%s: %v, %+v", name, err, p)
			}
			if sandbox.CodeOf(err) != sandbox.CodeUnauthorized || err.Error() != "the key is not valid" {
				t.Errorf("%s can be told from others: %v", name, err)
			}
		}
		refused("revoked", revoked, key.ErrRevoked)
		for _, bad := range []string{
			"", "atoll_", token[:len(token)-1], token + "x", strings.ToUpper(token), " " + token,
			token[:len(token)-1] + "_", strings.Replace(token, k.ID, rk.ID, 1), strings.Repeat("a", 1<<20), "\x00\xff",
		} {
			refused("malformed", bad, key.ErrUnknown)
		}
		mine, _ := newKey(t, s, "elsewhere", operator.NewKey{Verbs: []string{"read"}})
		stranger := storetest.SQLite(t, store.Options{})
		ok(t, stranger.Update(t.Context(), func(tx *store.Tx) error { _, err := tx.Tenants().Ensure(t.Context(), "acme"); return err }))
		_, err = key.NewRing(stranger).Authenticate(t.Context(), mine)
		if !errors.Is(err, key.ErrUnknown) {
			t.Errorf("a key of another database: %v", err)
		}
		now = now.Add(time.Hour)
		refused("expired", token, key.ErrExpired)
		update(func(tx *store.Tx) error { return tx.Tenants().Disable(t.Context(), "rival", true) })
		refused("disabled", other, key.ErrDisabled)
		update(func(tx *store.Tx) error { return tx.Tenants().Disable(t.Context(), "rival", false) })
		_, err = ring.Authenticate(t.Context(), other)
		ok(t, err)

		keys, err := store.Read(t.Context(), s, func(tx *store.Tx) ([]store.Key, error) { return tx.Tenants().Keys(t.Context(), "acme") })
		ok(t, err)
		if len(keys) != 2 || keys[0].Name+keys[1].Name != "ci" {
			t.Errorf("keys of acme: %+v", keys)
		}
		ok(t, s.Close())
		if _, err := ring.Authenticate(t.Context(), other); sandbox.CodeOf(err) == sandbox.CodeUnauthorized {
			t.Error("a store that cannot be asked looks like a bad key")
		}
	})
}

func TestCreateRefuses(t *testing.T) {
	s := storetest.SQLite(t, store.Options{})
	newKey(t, s, "acme", operator.NewKey{Verbs: []string{"read"}})
	for name, n := range map[string]operator.NewKey{
		"no verbs":  {},
		"odd verb":  {Verbs: []string{"read write"}},
		"a mark":    {Verbs: []string{"admin", "page"}},
		"the owner": {Verbs: []string{"owner"}},
		"past":      {Verbs: []string{"read"}, Expires: -1},
		"long name": {Verbs: []string{"read"}, Name: strings.Repeat("é", 101)},
		"control":   {Verbs: []string{"read"}, Name: "a\x1b[2J"},
	} {
		err := s.Update(t.Context(), func(tx *store.Tx) error {
			n.Tenant = "acme"
			_, err := key.NewRing(s).Create(t.Context(), tx, n)
			return err
		})
		if sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	err := s.Update(t.Context(), func(tx *store.Tx) error {
		_, err := key.NewRing(s).Create(t.Context(), tx, operator.NewKey{Tenant: "nobody", Verbs: []string{"read"}})
		return err
	})
	if sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("no tenant: %v", err)
	}
}

func TestAllow(t *testing.T) {
	for _, tt := range []struct {
		verbs []key.Verb
		op    ops.Op
		ok    bool
	}{
		{[]key.Verb{key.Read}, "files.read", true},
		{[]key.Verb{key.Read}, "files.write", false},
		{[]key.Verb{key.Read}, "process.exec", false},
		{[]key.Verb{key.Exec}, "process.exec", true},
		{[]key.Verb{key.Exec}, "sandbox.create", false},
		{[]key.Verb{key.Write}, "sandbox.create", true},
		{[]key.Verb{key.Write, key.Read, key.Exec}, "key.create", false},
		{[]key.Verb{key.Write, key.Read, key.Exec}, "never heard of", false},
		{[]key.Verb{key.Admin}, "key.create", true},
		{[]key.Verb{key.Admin}, "files.read", true},
		{nil, "files.read", false},
		{[]key.Verb{""}, "never heard of", false},
		{[]key.Verb{key.Admin, "owner"}, "tenant.list", false}, // no key is the owner of the machine
		{[]key.Verb{key.Admin}, ops.NodeDrain, false},
		{[]key.Verb{key.Admin, ops.Page}, ops.NodeDrain, true},
		{[]key.Verb{key.Admin, ops.Page}, "tenant.list", true},
		{[]key.Verb{key.Admin, ops.Page}, ops.TenantCreate, false},
		{[]key.Verb{key.Admin, ops.Page}, ops.TenantGet, false},
		{[]key.Verb{key.Admin, ops.Page}, ops.StateBackup, false},
		{[]key.Verb{key.Admin, ops.Page}, ops.DaemonConsole, false},
		{[]key.Verb{key.Admin, ops.Page}, ops.PortPublish, false},
	} {
		err := key.Principal{Verbs: tt.verbs}.Allow(tt.op)
		if (err == nil) != tt.ok || err != nil && sandbox.CodeOf(err) != sandbox.CodeDenied {
			t.Errorf("%v, %s: %v", tt.verbs, tt.op, err)
		}
	}
	inside := key.Principal{Verbs: []key.Verb{key.Admin, ops.Page}}.Within("sb-1")
	if err := inside.Allow(ops.NodeList); sandbox.CodeOf(err) != sandbox.CodeDenied {
		t.Errorf("the token of a sandbox, made by a page: %v", err)
	}
	if p := key.Peer("acme", 1000); p.Allow("key.create") != nil || p.Allow("tenant.list") != nil || *p.UID != 1000 || p.Key != "" {
		t.Errorf("a peer is %+v", p)
	}
}

func TestTokens(t *testing.T) {
	s := storetest.SQLite(t, store.Options{})
	seen := map[string]bool{}
	var count [256]float64
	const n = 200
	for range n {
		token, k := newKey(t, s, "acme", operator.NewKey{Verbs: []string{"read"}})
		if seen[token] || !key.Looks(token) || !strings.HasPrefix(token, "atoll_"+k.ID+"_") {
			t.Fatalf("a bad key: %q", token)
		}
		seen[token] = true
		text := "export KEY=" + token + "; curl"
		if got := key.Pattern.FindString(text); got != token {
			t.Errorf("a scanner finds %q in %q", got, text)
		}
		if token[10] != 'x' && key.Looks(token[:10]+"x"+token[11:]) {
			t.Error("a key with an error in it passes the checksum")
		}
		for _, c := range []byte(token[19 : 19+43]) {
			count[c]++
		}
	}
	mean := float64(n*43) / 62
	for c, got := range count {
		if got > 0 && math.Abs(got-mean) > 7*math.Sqrt(mean) {
			t.Errorf("%c came %v times, the mean is %v", c, got, mean)
		}
	}
}

func FuzzLooks(f *testing.F) {
	f.Add("atoll_000000000000_" + strings.Repeat("0", 49))
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		if key.Looks(s) && key.Pattern.FindString(s) != s {
			t.Errorf("%q looks like a key and a scanner would miss it", s)
		}
	})
}

func BenchmarkAuthenticate(b *testing.B) {
	s := storetest.SQLite(b, store.Options{})
	ring := key.NewRing(s)
	var k operator.Key
	if err := s.Update(b.Context(), func(tx *store.Tx) (err error) {
		if _, err = tx.Tenants().Ensure(b.Context(), "acme"); err == nil {
			k, err = ring.Create(b.Context(), tx, operator.NewKey{Tenant: "acme", Verbs: []string{"read"}})
		}
		return err
	}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := ring.Authenticate(context.Background(), k.Token); err != nil {
			b.Fatal(err)
		}
	}
}

// A key of one daemon works with another that imports it, with three rights.
// Malformed and revoked keys are refused, without repeating them.
func TestImport(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(store.Options) *store.Store) {
		maker, s := storetest.SQLite(t, store.Options{}), open(store.Options{})
		ring := key.NewRing(s)
		first, k := newKey(t, maker, "acme", operator.NewKey{Verbs: []string{"admin"}})
		second, _ := newKey(t, maker, "acme", operator.NewKey{Verbs: []string{"admin"}})
		own, _ := newKey(t, s, key.DefaultTenant, operator.NewKey{Verbs: []string{"read"}})
		imports := func(token string) (add string, replaced []string, err error) {
			err = s.View(t.Context(), func(tx *store.Tx) error {
				add, replaced, err = key.Imports(t.Context(), tx, token)
				return err
			})
			return add, replaced, err
		}
		add, replaced, err := imports(first)
		ok(t, err)
		if add != k.ID || len(replaced) > 0 {
			t.Errorf("the first key: Imports = %q, %q; want %q and none", add, replaced, k.ID)
		}
		ok(t, s.Update(t.Context(), func(tx *store.Tx) error { return key.Import(t.Context(), tx, first) }))
		p, err := ring.Authenticate(t.Context(), first)
		ok(t, err)
		if p.Tenant != key.DefaultTenant || p.Key != k.ID || len(p.Verbs) != 3 || p.Allow(ops.KeyCreate) == nil {
			t.Errorf("it may do more than read, exec and write in the default tenant: %+v", p)
		}
		for token, want := range map[string][]string{first: nil, second: {k.ID}, own: {k.ID}, "": {k.ID}} {
			add, replaced, err := imports(token)
			ok(t, err)
			if !slices.Equal(replaced, want) || (add != "") != (token == second) {
				t.Errorf("after the import: Imports = %q, %q; want %q replaced", add, replaced, want)
			}
		}
		for _, token := range []string{"x", strings.Repeat("a", len(first)), first[:len(first)-1] + "_"} {
			if _, _, err := imports(token); sandbox.CodeOf(err) != sandbox.CodeInvalid || strings.Contains(err.Error(), token) {
				t.Errorf("%q: %v, want %s without the key", token, err, sandbox.CodeInvalid)
			}
		}
		ok(t, s.Update(t.Context(), func(tx *store.Tx) error { return tx.Tenants().RevokeKey(t.Context(), key.DefaultTenant, k.ID) }))
		if _, _, err := imports(first); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("a revoked key: %v, want %s", err, sandbox.CodeInvalid)
		}
	})
}
