package store

import (
	"context"
	"encoding/json"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Machine is the record of a self-hosted machine. Tenant is empty while nobody
// has approved it.
type Machine struct {
	operator.Machine
	Tenant string
	// Secret is the hash of the code of a pending machine, or of the token of an
	// invited one.
	Secret string
}

// maxPendingMachines is how many machines may wait for approval at a time.
const maxPendingMachines = 64

const machineColumns = "tenant, secret, whole, machine_json"

func scanMachine(row scanner) (m Machine, err error) {
	var text string
	var whole int64
	if err := row.Scan(&m.Tenant, &m.Secret, &whole, &text); err != nil {
		return m, err
	}
	err = json.Unmarshal([]byte(text), &m.Machine)
	if len(m.Consents) == 0 { // an older program stored it
		m.Consents = operator.Consents{operator.ConsentSandboxes}
		if whole != 0 {
			m.Consents = append(m.Consents, operator.ConsentWholeMachine)
		}
	}
	return m, err
}

// Machines reads and changes the machines of tenants.
type Machines struct{ tx *Tx }

// Machines returns the methods for machines.
func (tx *Tx) Machines() Machines { return Machines{tx} }

// List lists the machines of a tenant, oldest first.
func (ms Machines) List(ctx context.Context, tenant string) ([]Machine, error) {
	rows, err := ms.tx.query(ctx, "SELECT "+machineColumns+" FROM machines WHERE tenant = $1 AND tenant <> '' ORDER BY created, id", tenant)
	return collect(rows, err, scanMachine)
}

// Get returns a machine of a tenant.
func (ms Machines) Get(ctx context.Context, tenant, id string) (Machine, error) {
	m, err := scanMachine(ms.tx.queryRow(ctx, "SELECT "+machineColumns+" FROM machines WHERE tenant = $1 AND tenant <> '' AND id = $2", tenant, id))
	return m, missing(err, "machine", id)
}

// Pending returns the machine that waits for approval with a code, given by its
// hash. It is of no tenant yet. CodeNotFound: there is none, or it waited for
// too long.
func (ms Machines) Pending(ctx context.Context, secret string) (Machine, error) {
	return ms.waiting(ctx, operator.MachinePending, secret)
}

func (ms Machines) waiting(ctx context.Context, state operator.MachineState, secret string) (Machine, error) {
	m, err := scanMachine(ms.tx.queryRow(ctx, "SELECT "+machineColumns+" FROM machines WHERE state = $1 AND secret = $2 AND expires > $3",
		string(state), secret, nanos(ms.tx.Now())))
	return m, missing(err, "machine", "")
}

// Set stores a machine, new or changed.
func (ms Machines) Set(ctx context.Context, m Machine) error {
	data, err := json.Marshal(m.Machine)
	if err != nil {
		return err
	}
	whole := 0
	if m.Consents.Has(operator.ConsentWholeMachine) {
		whole = 1
	}
	_, err = ms.tx.exec(ctx, `INSERT INTO machines (id, tenant, state, public_key, secret, whole, created, expires, machine_json) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
		ON CONFLICT (id) DO UPDATE SET tenant = $2, state = $3, public_key = $4, secret = $5, whole = $6, expires = $8, machine_json = $9`,
		m.ID, m.Tenant, string(m.State), m.Key, m.Secret, whole, nanos(m.Created), nanos(m.Expires), string(data))
	return err
}

// Machine returns the machine of any tenant with an id.
func (o *Operator) Machine(ctx context.Context, id string) (Machine, error) {
	m, err := scanMachine(o.tx.queryRow(ctx, "SELECT "+machineColumns+" FROM machines WHERE id = $1", id))
	return m, missing(err, "machine", id)
}

// MachineByKey returns the machine with a public key, approved or not.
// CodeNotFound: there is none, or it waited for too long.
func (o *Operator) MachineByKey(ctx context.Context, publicKey string) (Machine, error) {
	m, err := scanMachine(o.tx.queryRow(ctx, "SELECT "+machineColumns+" FROM machines WHERE public_key = $1 AND (state <> 'pending' OR expires > $2)",
		publicKey, nanos(o.tx.Now())))
	return m, missing(err, "machine", publicKey)
}

// ActiveMachines lists the machines of all tenants that may connect.
func (o *Operator) ActiveMachines(ctx context.Context) ([]Machine, error) {
	rows, err := o.tx.query(ctx, "SELECT "+machineColumns+" FROM machines WHERE state = 'active' ORDER BY created, id")
	return collect(rows, err, scanMachine)
}

// InvitedMachine returns the machine for which a token was made, given by its
// hash.
func (o *Operator) InvitedMachine(ctx context.Context, secret string) (Machine, error) {
	return o.tx.Machines().waiting(ctx, operator.MachineInvited, secret)
}

// AddPendingMachine stores a machine that waits for approval, and forgets those
// that waited for too long. CodeExhausted: too many wait.
func (o *Operator) AddPendingMachine(ctx context.Context, m Machine) error {
	if _, err := o.tx.exec(ctx, "DELETE FROM machines WHERE state IN ('pending', 'invited') AND expires <= $1", nanos(o.tx.Now())); err != nil {
		return err
	}
	if _, err := o.tx.exec(ctx, "DELETE FROM machines WHERE state = 'pending' AND public_key = $1", m.Key); err != nil {
		return err
	}
	var n int
	if err := o.tx.queryRow(ctx, "SELECT COUNT(*) FROM machines WHERE state = 'pending'").Scan(&n); err != nil {
		return err
	}
	if n >= maxPendingMachines {
		return fail(sandbox.CodeExhausted, "machines", "as many machines wait for approval as may")
	}
	return o.tx.Machines().Set(ctx, m)
}
