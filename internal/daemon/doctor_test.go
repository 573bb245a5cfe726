package daemon_test

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/internal/testing/fake"
	"github.com/atoll-run/atoll/internal/testing/storetest"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// finding returns a finding about a subject that is not OK.
func finding(d operator.Diagnosis, subject string) operator.Finding {
	i := slices.IndexFunc(d.Findings, func(f operator.Finding) bool { return f.Subject == subject && f.Severity != "ok" })
	if i < 0 {
		return operator.Finding{}
	}
	return d.Findings[i]
}

func diagnose(t *testing.T, c *atoll.Client) operator.Diagnosis {
	t.Helper()
	d, err := c.Admin().Diagnose(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDoctor(t *testing.T) {
	m := daemontest.New(t)
	first := m.Start(t, func(o *daemon.Options) { o.Version = "v1" })
	c := daemontest.Client(t, first)
	one := create(t, c, sandbox.Spec{Name: "one"})
	d := diagnose(t, c)
	if !d.Healthy || d.Version != "v1" || d.Node != "local" {
		t.Errorf("%+v", d)
	}
	for _, subject := range []string{"store", "audit", "sandboxes", "provider", "gateway", "disk", "descriptors", "clock"} {
		if !slices.ContainsFunc(d.Findings, func(f operator.Finding) bool { return f.Subject == subject }) {
			t.Errorf("nothing about the %s", subject)
		}
		if f := finding(d, subject); f.Severity == "blocker" || f.Severity == "warning" && subject != "disk" {
			t.Errorf("%+v", f)
		}
	}
	_, err := bearer(t, first, "default", "admin").Admin().Diagnose(t.Context())
	wantCode(t, err, sandbox.CodeDenied)

	// Another process makes a sandbox without the daemon, and removes one of the daemon's.
	p := fake.New(fake.Options{World: m.World})
	defer p.Close()
	if _, err := p.Create(t.Context(), &sandbox.Spec{ID: "sb-stray", Name: "stray"}); err != nil {
		t.Fatal(err)
	}
	if f := finding(diagnose(t, c), "sandboxes"); f.Severity != "warning" || !strings.Contains(f.Message, "sb-stray") || f.Fix == "" {
		t.Errorf("%+v", f)
	}
	if _, err := openSQL(t, m.Dir+"/atoll.db").Exec(`UPDATE sandboxes SET id = 'sb-nowhere' WHERE FALSE;
		INSERT INTO sandboxes (id, tenant, name, state, provider, node, image, spec_json, created, updated) VALUES ('sb-nowhere', 'default', 'nowhere', 'running', 'fake', 'local', 'host', '{}', 1, 1)`); err != nil {
		t.Fatal(err)
	}
	d = diagnose(t, c)
	if !slices.ContainsFunc(d.Findings, func(f operator.Finding) bool { return strings.Contains(f.Message, "sb-nowhere") }) {
		t.Errorf("%+v", d)
	}
	if strings.Contains(strings.Join(findingMessages(d), " "), string(one.ID())) {
		t.Errorf("what is well is blamed: %+v", d)
	}
}

func findingMessages(d operator.Diagnosis) (all []string) {
	for _, f := range d.Findings {
		all = append(all, f.Message)
	}
	return all
}

// Doctor finds a truncated log, a newer schema, a broken provider and an
// unavailable database.
func TestDoctorFindsFaults(t *testing.T) {
	t.Run("log", func(t *testing.T) {
		m := daemontest.New(t)
		first := m.Start(t, nil)
		create(t, daemontest.Client(t, first), sandbox.Spec{Name: "one"})
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := openSQL(t, m.Dir+"/atoll.db").Exec(`DROP TRIGGER events_append_only_delete; DELETE FROM events WHERE seq = 2;
			UPDATE event_heads SET seq = 1, hash = (SELECT hash FROM events WHERE seq = 1)`); err != nil {
			t.Fatal(err)
		}
		d := diagnose(t, daemontest.Client(t, m.Start(t, nil)))
		if f := finding(d, "audit"); d.Healthy || f.Severity != "blocker" || !strings.Contains(f.Fix, "atoll audit verify") {
			t.Errorf("%+v", d)
		}
	})
	t.Run("schema", func(t *testing.T) {
		m := daemontest.New(t)
		c := daemontest.Client(t, m.Start(t, nil))
		if _, err := openSQL(t, m.Dir+"/atoll.db").Exec("INSERT INTO goose_db_version (version_id, is_applied) VALUES (9999, 1)"); err != nil {
			t.Fatal(err)
		}
		if f := finding(diagnose(t, c), "store"); f.Severity != "blocker" || !strings.Contains(f.Message, "9999") {
			t.Errorf("%+v", f)
		}
	})
	t.Run("provider", func(t *testing.T) {
		m := daemontest.New(t)
		var broken atomic.Bool
		m.Fault = func(op string) error {
			if broken.Load() && op == "list" {
				return errors.New("canary: input/output error")
			}
			return nil
		}
		c := daemontest.Client(t, m.Start(t, nil))
		broken.Store(true)
		d := diagnose(t, c)
		if f := finding(d, "sandboxes"); d.Healthy || f.Severity != "blocker" || strings.Contains(f.Message, "canary") {
			t.Errorf("%+v", d)
		}
	})
	t.Run("clock", func(t *testing.T) {
		var set atomic.Int64
		c := daemontest.Client(t, daemontest.New(t).Start(t, func(o *daemon.Options) {
			daemon.SetWall(o, func() time.Time { return time.Now().Round(0).Add(time.Duration(set.Load())) })
		}))
		if f := finding(diagnose(t, c), "clock"); f.Severity != "" {
			t.Errorf("%+v", f)
		}
		for _, by := range []time.Duration{time.Hour, -time.Hour} {
			set.Store(int64(by))
			if f := finding(diagnose(t, c), "clock"); f.Severity != "warning" || !strings.Contains(f.Message, by.Round(time.Hour).String()[:2]) || f.Fix == "" {
				t.Errorf("%v: %+v", by, f)
			}
		}
	})
	t.Run("database", func(t *testing.T) {
		address := storetest.Postgres(t)
		c := daemontest.Client(t, daemontest.New(t).Start(t, on(address)))
		restore := storetest.Refuse(t, address)
		defer restore()
		d := diagnose(t, c)
		if f := finding(d, "store"); d.Healthy || f.Severity != "blocker" || f.Fix == "" {
			t.Errorf("%+v", d)
		}
	})
}
