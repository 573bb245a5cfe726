// Package machines manages the self-hosted machines of tenants: it approves
// their enrolment, invites them and revokes them.
package machines

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/catalog"
	"github.com/atoll-run/atoll/internal/audit"
	"github.com/atoll-run/atoll/internal/control/core"
	"github.com/atoll-run/atoll/internal/eventlog"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Link is the connection to the machines.
type Link interface {
	// Liveness returns whether a machine answers, and when it was heard of last.
	Liveness(m *store.Machine) (liveness string, seen time.Time)
	// Consents returns the consents of a machine's owner, from its last message.
	Consents(id string) (all operator.Consents, heard bool)
	// Revoked closes the connection of a machine that was revoked.
	Revoked(id string)
	// OnConsents makes the link report the consents of a machine's owner: when
	// it hears of the machine first, and after each change. A report that fails is
	// repeated.
	OnConsents(report func(ctx context.Context, tenant, id string, agreed operator.Consents) error)
}

// Service manages machines. It is safe for concurrent use.
type Service struct {
	*core.Core
	link Link // nil: there are no machines
}

// New returns a Service. Without a link, every method fails with CodeNotFound.
func New(c *core.Core) *Service { return &Service{Core: c} }

// Connect sets the connection to the machines. Call it before the first request.
func (s *Service) Connect(link Link) {
	s.link = link
	link.OnConsents(s.consented)
}

// Connected reports whether there is a connection to the machines.
func (s *Service) Connected() bool { return s.link != nil }

// Prefix is the begin of the names of the providers of machines.
const Prefix = "selfhosted-"

// TokenLife is how long a token for an enrolment is valid.
const TokenLife = time.Hour

// Hash returns the stored form of a code or a token. Codes are compared without
// regard to case and separators.
func Hash(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

// letters are those of codes. Those that are easily confused are left out.
const letters = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"

// NewCode returns a code for people, XXXX-XXXX.
func NewCode() string {
	b := make([]byte, 8)
	_, _ = rand.Read(b) // it never fails
	for i := range b {
		b[i] = letters[int(b[i])%len(letters)]
	}
	return string(b[:4]) + "-" + string(b[4:])
}

// HashCode is Hash for a code as a person writes it.
func HashCode(code string) string {
	return Hash(strings.ToUpper(strings.NewReplacer("-", "", " ", "").Replace(code)))
}

// NewID returns the id of a new machine.
func NewID() string { return strings.ToLower(rand.Text()[:10]) }

var errOff = &sandbox.Error{
	Code: sandbox.CodeNotFound, Subject: "machines", Message: "this daemon takes no self-hosted machines",
	Hint: "start it with: atoll up --machines-file FILE",
}

func (s *Service) public(m *store.Machine) operator.Machine {
	out := m.Machine
	out.Liveness = "offline"
	if out.State == operator.MachineActive {
		out.Provider = Prefix + m.ID
		var seen time.Time
		if out.Liveness, seen = s.link.Liveness(m); !seen.IsZero() {
			out.Seen = seen
		}
		if now, heard := s.link.Consents(m.ID); heard {
			out.Consents = now
		}
	}
	return out
}

// Machines lists the machines of the caller's tenant, oldest first.
func (s *Service) Machines(ctx context.Context) (_ []operator.Machine, err error) {
	const op = ops.MachineList
	defer core.Name(op, &err)
	who, err := s.Look(ctx, op, "")
	if err != nil {
		return nil, err
	}
	if s.link == nil {
		return nil, errOff
	}
	stored, err := store.Read(ctx, s.Store, func(tx *store.Tx) ([]store.Machine, error) { return tx.Machines().List(ctx, who.Tenant) })
	out := make([]operator.Machine, 0, len(stored))
	for i := range stored {
		out = append(out, s.public(&stored[i]))
	}
	return out, err
}

// State returns what the machine of a tenant's provider can do now, nil for a
// provider that is not a machine's. Whoever may see a session on it may know.
func (s *Service) State(ctx context.Context, tenant, provider string) (*catalog.Machine, error) {
	id, ok := strings.CutPrefix(provider, Prefix)
	if !ok || s.link == nil {
		return nil, nil
	}
	m, err := store.Read(ctx, s.Store, func(tx *store.Tx) (store.Machine, error) { return tx.Machines().Get(ctx, tenant, id) })
	if err != nil {
		return nil, err
	}
	// Sandboxes have screens of their own.
	own := m.Mode == operator.ModeWholeMachine
	consents, _ := s.link.Consents(m.ID)
	state := &catalog.Machine{Liveness: catalog.MachineOffline, Own: own, Display: true, Consented: !own || consents.Has(operator.ConsentScreen)}
	if m.State == operator.MachineActive {
		liveness, _ := s.link.Liveness(&m)
		state.Liveness = catalog.Liveness(liveness)
	}
	return state, nil
}

// Machine returns a machine of the caller's tenant by its id, or by its name
// among those that were not revoked.
func (s *Service) Machine(ctx context.Context, ref string) (_ operator.Machine, err error) {
	const op = ops.MachineList
	defer core.Name(op, &err)
	who, err := s.Look(ctx, op, ref)
	if err != nil {
		return operator.Machine{}, err
	}
	if s.link == nil {
		return operator.Machine{}, errOff
	}
	m, err := store.Read(ctx, s.Store, func(tx *store.Tx) (store.Machine, error) { return find(ctx, tx, who.Tenant, ref) })
	if err != nil {
		return operator.Machine{}, err
	}
	return s.public(&m), nil
}

func find(ctx context.Context, tx *store.Tx, tenant, ref string) (store.Machine, error) {
	m, err := tx.Machines().Get(ctx, tenant, ref)
	if sandbox.CodeOf(err) != sandbox.CodeNotFound {
		return m, err
	}
	all, failed := tx.Machines().List(ctx, tenant)
	if failed != nil {
		return m, failed
	}
	for i := range all {
		if all[i].Name == ref && all[i].State != operator.MachineRevoked {
			return all[i], nil
		}
	}
	return m, err
}

var errCode = &sandbox.Error{
	Code: sandbox.CodeNotFound, Subject: "code", Message: "no machine waits with this code",
	Hint: "a code is valid for ten minutes; see the output of: atoll machine join",
}

// LookupMachine returns the machine that waits with a code. Every failure is
// CodeNotFound.
func (s *Service) LookupMachine(ctx context.Context, code string) (_ operator.Machine, err error) {
	const op = ops.MachineLookup
	defer core.Name(op, &err)
	if _, err := s.Look(ctx, op, ""); err != nil {
		return operator.Machine{}, err
	}
	if s.link == nil {
		return operator.Machine{}, errOff
	}
	m, err := store.Read(ctx, s.Store, func(tx *store.Tx) (store.Machine, error) { return tx.Machines().Pending(ctx, HashCode(code)) })
	if err != nil {
		return operator.Machine{}, errCode
	}
	return s.public(&m), nil
}

// ApproveMachine makes a machine that waits with a code one of the caller's
// tenant.
func (s *Service) ApproveMachine(ctx context.Context, a operator.MachineApproval) (operator.Machine, error) {
	var m store.Machine
	err := s.ChangeTx(ctx, ops.MachineApprove, "", func(ctx context.Context, tx *store.Tx, tenant string) (string, error) {
		if s.link == nil {
			return "", errOff
		}
		var err error
		if m, err = tx.Machines().Pending(ctx, HashCode(a.Code)); err != nil {
			return "", errCode
		}
		if m.Consents, err = taken(m.Consents, taking(a.Consents, a.WholeMachine)); err != nil {
			return m.ID, err
		}
		m.Tenant = tenant
		Activate(&m, tx.Now())
		return m.ID, tx.Machines().Set(ctx, m)
	})
	if err != nil {
		return operator.Machine{}, err
	}
	return s.public(&m), nil
}

// consented records the consents of a machine's owner, if they changed. It is
// an event: nobody asked this daemon.
func (s *Service) consented(ctx context.Context, tenant, id string, agreed operator.Consents) error {
	changed := false
	err := s.Store.Update(ctx, func(tx *store.Tx) error {
		m, err := tx.Machines().Get(ctx, tenant, id)
		if err != nil {
			return err
		}
		agreed = append(slices.Clone(agreed), operator.Consent(m.Mode)).Known()
		if changed = m.State == operator.MachineActive && !slices.Equal(agreed, m.Consents.Known()); !changed {
			return nil
		}
		m.Consents = agreed
		return tx.Machines().Set(ctx, m)
	})
	if err != nil || !changed {
		return err
	}
	fact := audit.Action{Tenant: tenant, Op: ops.MachineConsent, Subject: id, Policy: agreed.String()}
	return s.Audit.Fact(ctx, fact, eventlog.MachineConsents, nil)
}

// taking returns the consents of a request, which may have a field for one.
func taking(all operator.Consents, whole bool) operator.Consents {
	if whole {
		all = append(slices.Clone(all), operator.ConsentWholeMachine)
	}
	return all
}

// taken returns what is taken of the consents that a machine asks to be approved
// with. Its mode always is, and that of the whole machine has to be named.
func taken(asks, takes operator.Consents) (all operator.Consents, err error) {
	if asks.Has(operator.ConsentWholeMachine) && !takes.Has(operator.ConsentWholeMachine) {
		return nil, &sandbox.Error{
			Code: sandbox.CodeConflict, Subject: "consents", Message: "the machine runs commands with all rights of its owner: approving it needs your consent to that",
			Hint: "agree with: atoll machine approve --whole-machine CODE",
		}
	}
	for _, to := range takes {
		if !asks.Has(to) && to != operator.ConsentSandboxes {
			return nil, &sandbox.Error{Code: sandbox.CodeConflict, Subject: "consents", Message: "the machine does not offer " + string(to), Hint: "leave it out: it offers " + asks.String()}
		}
	}
	for _, to := range asks {
		if takes.Has(to) || to == operator.ConsentSandboxes {
			all = append(all, to)
		}
	}
	return all, nil
}

// Activate makes m an active machine.
func Activate(m *store.Machine, now time.Time) {
	m.State, m.Approved, m.Expires, m.Secret = operator.MachineActive, now, time.Time{}, ""
}

// InviteMachine makes a token that enrols one machine without a person.
func (s *Service) InviteMachine(ctx context.Context, n operator.NewMachineToken) (operator.MachineToken, error) {
	var m store.Machine
	token := "amt_" + rand.Text() + rand.Text()
	err := s.ChangeTx(ctx, ops.MachineInvite, n.Name, func(ctx context.Context, tx *store.Tx, tenant string) (string, error) {
		if s.link == nil {
			return "", errOff
		}
		if err := sandbox.ValidateName(n.Name); err != nil {
			return "", err
		}
		m = store.Machine{Tenant: tenant, Secret: Hash(token), Machine: operator.Machine{
			Consents: append(taking(n.Consents, n.WholeMachine), operator.ConsentSandboxes).Known(),
			ID:       NewID(), Name: n.Name, State: operator.MachineInvited, Mode: operator.ModeSandboxes, Created: tx.Now(), Expires: tx.Now().Add(TokenLife),
		}}
		return m.ID, tx.Machines().Set(ctx, m)
	})
	if err != nil {
		return operator.MachineToken{}, err
	}
	return operator.MachineToken{Machine: s.public(&m), Token: token}, nil
}

// RevokeMachine ends the enrolment of a machine, and closes its connection. It
// is named by its id or name. Revoking again changes nothing.
func (s *Service) RevokeMachine(ctx context.Context, ref string) error {
	var m store.Machine
	err := s.ChangeTx(ctx, ops.MachineRevoke, ref, func(ctx context.Context, tx *store.Tx, tenant string) (string, error) {
		if s.link == nil {
			return "", errOff
		}
		var err error
		if m, err = find(ctx, tx, tenant, ref); err != nil {
			return "", err
		}
		if m.State == operator.MachineRevoked {
			return m.ID, nil
		}
		m.State, m.Secret, m.Expires, m.Revoked = operator.MachineRevoked, "", time.Time{}, tx.Now()
		return m.ID, tx.Machines().Set(ctx, m)
	})
	if err == nil {
		s.link.Revoked(m.ID)
	}
	return err
}
