package broker_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/atoll-run/atoll/internal/machine/broker"
	"github.com/atoll-run/atoll/internal/machine/hub"
	"github.com/atoll-run/atoll/sandbox"
)

func start(t *testing.T, o broker.Options) *broker.Server {
	t.Helper()
	s, err := broker.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// An address that cannot be used is refused before anything starts.
func TestAddresses(t *testing.T) {
	used := start(t, broker.Options{Listen: "127.0.0.1:0"})
	for listen, want := range map[string]sandbox.Code{
		"":                   sandbox.CodeInvalid,
		"localhost":          sandbox.CodeInvalid,
		"127.0.0.1:":         sandbox.CodeInvalid,
		"127.0.0.1:nats":     sandbox.CodeInvalid,
		"127.0.0.1:-1":       sandbox.CodeInvalid,
		"127.0.0.1:65536":    sandbox.CodeInvalid,
		"::1:4222":           sandbox.CodeInvalid,
		used.Addr().String(): sandbox.CodeUnavailable,
	} {
		s, err := broker.Start(broker.Options{Listen: listen})
		if err == nil {
			s.Close()
		}
		if sandbox.CodeOf(err) != want {
			t.Errorf("%q: %v, want the code %s", listen, err, want)
		}
	}
}

// A server after an earlier one has its secrets, so that the daemon and machines
// of that find it. Servers without one share none.
func TestFormerServer(t *testing.T) {
	first, other := start(t, broker.Options{Listen: "127.0.0.1:0"}), start(t, broker.Options{Listen: "127.0.0.1:0"})
	was := first.Describe("tls://a:1")
	if o := other.Describe("tls://a:1"); was.Password == o.Password || was.Issuer == o.Issuer || len(was.Password) < 20 {
		t.Error("two servers have the same secrets, or short ones")
	}
	text, err := json.Marshal(was)
	if err != nil {
		t.Fatal(err)
	}
	var former broker.Description
	if err := json.Unmarshal(text, &former); err != nil {
		t.Fatal(err)
	}
	if is := start(t, broker.Options{Listen: "127.0.0.1:0", Former: &former}).Describe("tls://a:1"); is != was {
		t.Error("the next server has other secrets")
	}
}

// A description that is not of a server of Atoll is refused, and the error does
// not repeat its secrets.
func TestDescriptionsThatAreNone(t *testing.T) {
	good := start(t, broker.Options{Listen: "127.0.0.1:0"}).Describe("")
	user, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := user.Seed()
	if err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*broker.Description){
		"nothing":           func(d *broker.Description) { *d = broker.Description{} },
		"no password":       func(d *broker.Description) { d.Password = "" },
		"another user":      func(d *broker.Description) { d.User = "admin" },
		"another account":   func(d *broker.Description) { d.Account = "SYS" },
		"no issuer":         func(d *broker.Description) { d.Issuer = "" },
		"part of an issuer": func(d *broker.Description) { d.Issuer = d.Issuer[:20] },
		"key of a user":     func(d *broker.Description) { d.Issuer = string(seed) },
	} {
		d := good
		spoil(&d)
		s, err := broker.Start(broker.Options{Listen: "127.0.0.1:0", Former: &d})
		if err == nil {
			s.Close()
		}
		if sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%s: %v", name, err)
		} else if d.Issuer != "" && strings.Contains(err.Error(), d.Issuer) || d.Password != "" && strings.Contains(err.Error(), d.Password) {
			t.Errorf("%s: the error tells a secret", name)
		}
	}
}

// Without a hub, nobody but the daemon is let in: not without a name, with a
// guessed password, or with a key.
func TestNobodyIsLetIn(t *testing.T) {
	s := start(t, broker.Options{Listen: "127.0.0.1:0"})
	d := s.Describe("nats://" + s.Addr().String())
	user, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, err := user.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	for name, option := range map[string]nats.Option{
		"nothing":            nats.Name("x"),
		"a guessed password": nats.UserInfo(d.User, "guess"),
		"no password":        nats.UserInfo(d.User, ""),
		"another user":       nats.UserInfo("admin", d.Password),
		"a key":              nats.Nkey(public, user.Sign),
	} {
		if conn, err := nats.Connect(d.URL, nats.NoReconnect(), option); err == nil {
			conn.Close()
			t.Errorf("%s: it is let in", name)
		}
	}
	conn, err := nats.Connect(d.URL, nats.NoReconnect(), nats.UserInfo(d.User, d.Password))
	if err != nil {
		t.Fatalf("the daemon: %v", err)
	}
	defer conn.Close()
	if err := conn.Publish("x", make([]byte, 256<<10+1)); err == nil {
		t.Error("a message may be larger than 256 KiB")
	}
}

// A hub closes connections of this server alone: numbers of connections are only
// its own.
func TestKickOfAnotherServer(t *testing.T) {
	s := start(t, broker.Options{Listen: "127.0.0.1:0"})
	var c hub.Config
	s.Configure(&c)
	d := s.Describe("nats://" + s.Addr().String())
	conn, err := nats.Connect(d.URL, nats.NoReconnect(), nats.UserInfo(d.User, d.Password))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	id, err := conn.GetClientID()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Kick("another", id); err == nil {
		t.Error("a connection of another server is closed")
	}
}
