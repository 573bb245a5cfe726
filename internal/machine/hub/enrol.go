package hub

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/atoll-run/atoll/internal/control/machines"
	"github.com/atoll-run/atoll/internal/machine"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Times of an enrolment.
const (
	codeLife = 10 * time.Minute
	pollTime = 5 * time.Second
)

// enrol answers a process whose key is not enrolled. The server lets it publish
// to the subject of its own key alone, so the subject proves the key.
func (h *Hub) enrol(msg *nats.Msg) {
	key := strings.TrimPrefix(msg.Subject, "enrol.")
	if strings.Contains(key, ".") {
		return
	}
	ctx, cancel := context.WithTimeout(h.life, authTimeout)
	defer cancel()
	a, err := h.enrolment(ctx, key, msg.Data)
	if err == nil && a.State == machine.Authorized {
		a.Signer, err = h.issuer.PublicKey()
	}
	if err != nil {
		a = machine.Answer{State: machine.Denied, Error: err.Error()}
	}
	text, err := json.Marshal(a)
	if err == nil {
		err = h.conn.Publish(machine.EnrolSubject(key)+machine.ReplySuffix, text)
	}
	if err != nil {
		h.cfg.Logger.Error("answering an enrolment", "error", err)
	}
}

func refused(message string) error {
	return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "machine.enrol", Message: message}
}

func (h *Hub) enrolment(ctx context.Context, key string, data []byte) (machine.Answer, error) {
	var e machine.Enrolment
	if err := json.Unmarshal(data, &e); err != nil {
		return machine.Answer{}, refused("the request cannot be read")
	}
	whole := e.Mode == operator.ModeWholeMachine
	switch {
	case e.Poll:
		return h.state(ctx, key)
	case sandbox.ValidateName(e.Name) != nil:
		return machine.Answer{}, sandbox.ValidateName(e.Name)
	case !whole && e.Mode != operator.ModeSandboxes:
		return machine.Answer{}, refused("the mode is not known")
	case !whole && e.Consents.Has(operator.ConsentScreen):
		return machine.Answer{}, refused("sandboxes have screens of their own")
	case whole && (!e.Consents.Has(operator.ConsentWholeMachine) || e.Directory == ""):
		return machine.Answer{}, refused("the owner of the machine has not agreed to the mode whole-machine")
	}
	var a machine.Answer
	e.Consents = append(e.Consents, operator.Consent(e.Mode)).Known()
	err := h.cfg.Store.Update(ctx, func(tx *store.Tx) error {
		now := tx.Now()
		m := store.Machine{Machine: operator.Machine{
			ID: machines.NewID(), Name: e.Name, Mode: e.Mode, Directory: clip(e.Directory), OS: clip(e.OS), Arch: clip(e.Arch), Version: clip(e.Version),
			Consents: e.Consents, Key: key, Created: now, State: operator.MachinePending, Expires: now.Add(codeLife),
		}}
		if e.Token == "" {
			code := machines.NewCode()
			m.Secret = machines.HashCode(code)
			a = machine.Answer{State: machine.Pending, Code: code, Life: codeLife, Every: pollTime}
			return tx.Operator().AddPendingMachine(ctx, m)
		}
		invited, err := tx.Operator().InvitedMachine(ctx, machines.Hash(e.Token))
		if err != nil {
			return refused("the token is not valid: it was used, or an hour has passed")
		}
		for _, to := range e.Consents {
			if to != operator.ConsentSandboxes && !invited.Consents.Has(to) {
				return refused("the token does not allow " + string(to))
			}
		}
		m.ID, m.Tenant, m.Created = invited.ID, invited.Tenant, invited.Created
		m.Name = invited.Name
		machines.Activate(&m, now)
		a = machine.Answer{State: machine.Authorized, Machine: m.ID, Tenant: m.Tenant, Consents: m.Consents}
		return tx.Machines().Set(ctx, m)
	})
	return a, err
}

// state returns the state of an enrolment that was requested.
func (h *Hub) state(ctx context.Context, key string) (machine.Answer, error) {
	m, err := h.byKey(ctx, key)
	switch {
	case sandbox.CodeOf(err) == sandbox.CodeNotFound:
		return machine.Answer{State: machine.Expired}, nil
	case err != nil:
		return machine.Answer{}, err
	case m.State == operator.MachineActive:
		return machine.Answer{State: machine.Authorized, Machine: m.ID, Tenant: m.Tenant, Consents: m.Consents}, nil
	case m.State == operator.MachinePending:
		return machine.Answer{State: machine.Pending, Every: pollTime}, nil
	}
	return machine.Answer{State: machine.Denied}, nil
}

func clip(s string) string {
	const most = 256
	s = strings.ToValidUTF8(s, "")
	return strings.ToValidUTF8(s[:min(len(s), most)], "")
}
