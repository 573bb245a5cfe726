package hub_test

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/atoll-run/atoll/internal/machine/broker"
	"github.com/atoll-run/atoll/internal/machine/hub"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// patience is how long a test waits for what must happen.
const patience = 20 * time.Second

// world is a NATS server with a hub.
type world struct {
	store *store.Store
	hub   *hub.Hub
	url   string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "store.db"), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	server, err := broker.Start(broker.Options{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	config := hub.Config{Store: db, Logger: slog.New(slog.DiscardHandler)}
	server.Configure(&config)
	h, err := hub.Open(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return &world{db, h, "nats://" + server.Addr().String()}
}

// set stores a machine of a tenant.
func (w *world) set(t *testing.T, m store.Machine) {
	t.Helper()
	err := w.store.Update(t.Context(), func(tx *store.Tx) error {
		if _, err := tx.Tenants().Ensure(t.Context(), m.Tenant); err != nil {
			return err
		}
		m.Created = tx.Now()
		if m.State == operator.MachineInvited {
			m.Expires = tx.Now().Add(m.Expires.Sub(time.Time{}))
		}
		return tx.Machines().Set(t.Context(), m)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) get(t *testing.T, tenant, id string) store.Machine {
	t.Helper()
	m, err := store.Read(t.Context(), w.store, func(tx *store.Tx) (store.Machine, error) { return tx.Machines().Get(t.Context(), tenant, id) })
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// connect connects as a process that has a key.
func (w *world) connect(t *testing.T, key nkeys.KeyPair, instance string) (*nats.Conn, error) {
	t.Helper()
	conn, err := nats.Connect(w.url, nats.NoReconnect(), nats.Name(instance), nats.Nkey(public(t, key), key.Sign))
	if err == nil {
		t.Cleanup(conn.Close)
	}
	return conn, err
}

func newKey(t *testing.T) nkeys.KeyPair {
	t.Helper()
	key, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func public(t *testing.T, key nkeys.KeyPair) string {
	t.Helper()
	text, err := key.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func active(id, key string) store.Machine {
	return store.Machine{Tenant: "acme", Machine: operator.Machine{ID: id, Name: id, Key: key, State: operator.MachineActive, Mode: operator.ModeSandboxes}}
}

// A machine that was revoked keeps no connection, whatever it called those that
// it had, and however many they were.
func TestRevokedMachineKeepsNoConnection(t *testing.T) {
	for _, c := range []struct {
		name     string
		instance func(i int) string
		count    int
	}{
		{"one", func(int) string { return "me" }, 1},
		{"with the same name", func(int) string { return "me" }, 3},
		{"with many names", func(i int) string { return fmt.Sprint("p", i) }, 40},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, key := newWorld(t), newKey(t)
			m := active("m-one", public(t, key))
			w.set(t, m)
			var conns []*nats.Conn
			for i := range c.count {
				conn, err := w.connect(t, key, c.instance(i))
				if err != nil {
					t.Fatal(err)
				}
				conns = append(conns, conn)
			}
			m.State = operator.MachineRevoked
			w.set(t, m)
			w.hub.Revoked(m.ID)
			for _, conn := range conns {
				await(t, conn)
			}
			if _, err := w.connect(t, key, "again"); err == nil {
				t.Error("it can connect again")
			}
		})
	}
}

// A machine that connects all the time while it is revoked keeps no connection
// that was let in at the last moment.
func TestRevokedMachineThatConnects(t *testing.T) {
	for range 20 {
		w, key := newWorld(t), newKey(t)
		m := active("m-one", public(t, key))
		w.set(t, m)
		conns := make(chan *nats.Conn, 1<<16)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for {
					conn, err := nats.Connect(w.url, nats.NoReconnect(), nats.Name("me"), nats.Nkey(m.Key, key.Sign))
					if err != nil {
						return
					}
					conns <- conn
				}
			})
		}
		first := <-conns
		m.State = operator.MachineRevoked
		w.set(t, m)
		w.hub.Revoked(m.ID)
		all.Wait() // each ends when it is refused
		close(conns)
		await(t, first)
		for conn := range conns {
			await(t, conn)
		}
	}
}

// await waits until a connection is closed by the server.
func await(t *testing.T, conn *nats.Conn) {
	t.Helper()
	for deadline := time.Now().Add(patience); !conn.IsClosed(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			conn.Close()
			t.Fatal("a connection is still open")
		}
	}
}
