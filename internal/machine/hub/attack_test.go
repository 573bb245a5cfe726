package hub_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/atoll-run/atoll/internal/control/machines"
	"github.com/atoll-run/atoll/internal/machine"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// The name of a process becomes a part of its subjects. So a name that has a
// pattern, or another subject, is refused.
func TestNamesOfProcesses(t *testing.T) {
	w, key := newWorld(t), newKey(t)
	w.set(t, active("m-one", public(t, key)))
	for _, c := range []struct {
		name string
		in   bool
	}{
		{"me", true},
		{"Me_1-2", true},
		{strings.Repeat("a", 64), true},
		{strings.Repeat("a", 65), false},
		{"", false},
		{"*", false},
		{">", false},
		{"a.b", false},
		{"a b", false},
		{"a\x00", false},
		{"é", false},
	} {
		conn, err := w.connect(t, key, c.name)
		if (err == nil) != c.in {
			t.Errorf("a process %q: %v, want that it is let in: %t", c.name, err, c.in)
		}
		if err == nil {
			conn.Close()
		}
	}
}

// A process must prove the key that it names.
func TestKeyIsProved(t *testing.T) {
	w, key, other := newWorld(t), newKey(t), newKey(t)
	w.set(t, active("m-one", public(t, key)))
	for name, sign := range map[string]nats.SignatureHandler{
		"with another key":     other.Sign,
		"with nothing":         func([]byte) ([]byte, error) { return nil, nil },
		"of another text":      func([]byte) ([]byte, error) { return key.Sign([]byte("another")) },
		"that is cut off":      func(nonce []byte) ([]byte, error) { s, err := key.Sign(nonce); return s[:len(s)-1], err },
		"with something after": func(nonce []byte) ([]byte, error) { s, err := key.Sign(nonce); return append(s, 0), err },
	} {
		conn, err := nats.Connect(w.url, nats.NoReconnect(), nats.Name("me"), nats.Nkey(public(t, key), sign))
		if err == nil {
			conn.Close()
			t.Errorf("a signature %s is let in", name)
		}
	}
}

// ask sends a request for an enrolment as a process does, and returns the answer.
func (w *world) ask(t *testing.T, key nkeys.KeyPair, request string) machine.Answer {
	t.Helper()
	conn, err := w.connect(t, key, "enrol")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	subject := machine.EnrolSubject(public(t, key))
	answers, err := conn.SubscribeSync(subject + machine.ReplySuffix)
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.Publish(subject, []byte(request)); err != nil {
		t.Fatal(err)
	}
	msg, err := answers.NextMsg(patience)
	if err != nil {
		t.Fatal(err)
	}
	var a machine.Answer
	if err := json.Unmarshal(msg.Data, &a); err != nil {
		t.Fatal(err)
	}
	return a
}

// Requests that are none, or ask for too much, are refused with the reason, and
// leave no trace.
func TestEnrolmentsThatAreRefused(t *testing.T) {
	w, key := newWorld(t), newKey(t)
	for _, c := range []struct{ name, request, want string }{
		{"no JSON", `{`, "cannot be read"},
		{"another type", `[]`, "cannot be read"},
		{"nothing", ``, "cannot be read"},
		{"no name", `{"mode":"sandboxes"}`, "name"},
		{"a name that is none", `{"name":"../x","mode":"sandboxes"}`, "name"},
		{"no mode", `{"name":"a"}`, "mode is not known"},
		{"an unknown mode", `{"name":"a","mode":"root"}`, "mode is not known"},
		{"a screen without the machine", `{"name":"a","mode":"sandboxes","consents":["sandboxes","screen"]}`, "screens of their own"},
		{"no consent", `{"name":"a","mode":"whole-machine","directory":"/x"}`, "has not agreed"},
		{"the consent to another mode", `{"name":"a","mode":"whole-machine","directory":"/x","consents":["sandboxes"]}`, "has not agreed"},
		{"no directory", `{"name":"a","mode":"whole-machine","consents":["whole-machine"]}`, "has not agreed"},
		{"a guessed token", `{"name":"a","mode":"sandboxes","token":"guess"}`, "token is not valid"},
	} {
		if a := w.ask(t, key, c.request); a.State != machine.Denied || !strings.Contains(a.Error, c.want) || a.Code != "" || a.Signer != "" {
			t.Errorf("%s: %+v, want that it is denied because of %q", c.name, a, c.want)
		}
	}
	if a := w.ask(t, key, `{"poll":true}`); a.State != machine.Expired {
		t.Errorf("afterwards the machine is %+v", a)
	}
}

// A token enrols one machine, into the tenant that made it and under the name it
// was made for. A request that is refused does not use it up.
func TestTokenEnrolsOnce(t *testing.T) {
	w := newWorld(t)
	w.set(t, store.Machine{Tenant: "acme", Secret: machines.Hash("token"), Machine: operator.Machine{
		ID: "m-one", Name: "laptop", State: operator.MachineInvited, Expires: time.Time{}.Add(time.Hour), Consents: operator.Consents{operator.ConsentSandboxes},
	}})
	w.set(t, store.Machine{Tenant: "acme", Secret: machines.Hash("late"), Machine: operator.Machine{
		ID: "m-late", Name: "late", State: operator.MachineInvited, Expires: time.Time{}.Add(-time.Second), Consents: operator.Consents{operator.ConsentSandboxes},
	}})
	first, second := newKey(t), newKey(t)
	if a := w.ask(t, first, `{"name":"a","mode":"sandboxes","token":"late"}`); a.State != machine.Denied {
		t.Errorf("a token that expired: %+v", a)
	}
	whole := `{"name":"a","mode":"whole-machine","directory":"/","consents":["whole-machine"],"token":"token"}`
	if a := w.ask(t, first, whole); a.State != machine.Denied || !strings.Contains(a.Error, "does not allow whole-machine") {
		t.Errorf("more than the token allows: %+v", a)
	}
	request := `{"name":"other","mode":"sandboxes","token":"token","os":"` + strings.Repeat("é", 200) + `","version":"\ud800"}`
	if a := w.ask(t, first, request); a.State != machine.Authorized || a.Machine != "m-one" || a.Tenant != "acme" || a.Signer == "" {
		t.Fatalf("the token: %+v", a)
	}
	if m := w.get(t, "acme", "m-one"); m.Name != "laptop" || m.Key != public(t, first) || m.OS != strings.Repeat("é", 128) || m.Secret != "" {
		t.Errorf("the machine is %+v, secret %q", m.Machine, m.Secret)
	}
	if a := w.ask(t, second, `{"name":"b","mode":"sandboxes","token":"token"}`); a.State != machine.Denied {
		t.Errorf("the token again: %+v", a)
	}
}

// A process whose machine waits for approval learns only that, and its code is
// replaced when it asks again.
func TestPendingEnrolment(t *testing.T) {
	w, key := newWorld(t), newKey(t)
	request := `{"name":"a","mode":"sandboxes","consents":["sandboxes"]}`
	one, two := w.ask(t, key, request), w.ask(t, key, request)
	if one.State != machine.Pending || one.Code == "" || one.Code == two.Code || one.Machine != "" || one.Tenant != "" {
		t.Errorf("answers %+v and %+v", one, two)
	}
	for code, waits := range map[string]bool{one.Code: false, two.Code: true} {
		_, err := store.Read(t.Context(), w.store, func(tx *store.Tx) (store.Machine, error) {
			return tx.Machines().Pending(t.Context(), machines.HashCode(code))
		})
		if (err == nil) != waits {
			t.Errorf("code %s: %v, want that a machine waits: %t", code, err, waits)
		}
	}
	if a := w.ask(t, key, `{"poll":true}`); a.State != machine.Pending || a.Code != "" {
		t.Errorf("its state: %+v", a)
	}
}
