// Package hosted is the common part of the providers of hosted services: it
// records their sandboxes, creates each of them once, ends them, and reports
// how they ended.
package hosted

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/provider/internal/records"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
)

// Record is the stored data of a sandbox. It contains no secrets.
type Record struct {
	ServiceID  string            `json:"box"`              // the service's id; empty until it has been made
	Asked      time.Time         `json:"asked,omitzero"`   // when the service was asked to make it
	More       bool              `json:"more,omitempty"`   // there is more than the sandbox to remove
	Ends       time.Time         `json:"ends,omitzero"`    // of its lifetime
	Destroying bool              `json:"doomed,omitempty"` // we ended it, or were about to
	Over       bool              `json:"over,omitempty"`   // we ended it because its lifetime was over
	Binding    string            `json:"binding"`
	Account    string            `json:"account,omitempty"` // the service's name of the account, if known
	Network    string            `json:"network,omitempty"` // the permitted network, if the service does not report it
	Labels     map[string]string `json:"labels,omitempty"`  // labels, if the service does not store them
	// Scope is the scope of the directory that created the sandbox, if that was
	// another one and the service still reports it.
	Scope     string `json:"scope,omitempty"`
	Adoptions int    `json:"turn,omitempty"` // as in our OwnerMark
	// Life is how long the sandbox may run after it was started or resumed, if the
	// service requires that on each start.
	Life             time.Duration `json:"life,omitempty"`
	AdoptedElsewhere bool          `json:"given,omitempty"` // another directory has adopted it
}

// making limits how long a request may continue after its caller gave up. It is
// longer than settling, so that who waits for a status says which one it was.
const making = settling + time.Minute

// undoing limits how long the removal of what a failed request left may take.
const undoing = settling

// kept is how long the record of a sandbox that ended by itself is kept, so
// that its users can still read the reason.
const kept = 24 * time.Hour

// Records are the records of a provider's sandboxes. Its methods may be called
// concurrently.
type Records struct{ records.Dir[Record] }

// Open returns the records below a directory, which need not exist.
func Open(dir string) Records { return Records{records.Dir[Record]{Root: dir, Name: "boxes"}} }

// Forget removes old records of ended sandboxes whose bindings are ours. The
// state of other sandboxes is unknown.
func (rs Records) Forget(ours func(binding string) bool) {
	rs.Sweep(func(r Record) bool {
		return !r.Ends.IsZero() && time.Now().After(r.Ends.Add(kept)) && ours(r.Binding)
	})
}

// ScopeOf returns the scope that the service reports for a sandbox of this
// directory.
func (rs Records) ScopeOf(id sandbox.ID) (string, error) {
	if r, ok := rs.Get(string(id)); ok && r.Scope != "" {
		return r.Scope, nil
	}
	return rs.Scope()
}

// Of returns the record of a sandbox, or an empty one if the name now belongs
// to another sandbox of the service.
func (rs Records) Of(id sandbox.ID, sb string) Record {
	if r, ok := rs.Get(string(id)); ok && r.ServiceID == sb {
		return r
	}
	return Record{}
}

// Change changes the record of a sandbox, if there is one.
func (rs Records) Change(ctx context.Context, id sandbox.ID, sb string, f func(*Record)) error {
	l, err := rs.Lock(ctx, string(id))
	if err != nil {
		return err
	}
	defer l.Unlock()
	r := l.Read()
	if r.ServiceID != sb {
		if r.Binding == "" {
			return l.Remove() // it is empty
		}
		return nil
	}
	f(&r)
	return l.Write(r)
}

// Cause returns how a sandbox ended, for services that do not report it. If its
// lifetime was over and this installation did not end it, the lifetime is the
// cause.
func (rs Records) Cause(id sandbox.ID, sb string, ends time.Time) sandbox.Exit {
	r := rs.Of(id, sb)
	if ends.IsZero() || !r.Ends.IsZero() && r.Ends.Before(ends) {
		ends = r.Ends
	}
	if r.ServiceID == "" || r.Destroying || ends.IsZero() || time.Now().Before(ends.Add(-guestkit.Slack)) {
		return guestkit.Killed
	}
	return guestkit.Expired
}

// Absent returns the error for a sandbox that the service does not list: it is
// gone, unless it was created with another binding or in another account.
func (rs Records) Absent(id sandbox.ID, ours func(binding string) bool, account, hint string) error {
	r, ok := rs.Get(string(id))
	if !ok || r.Binding == "" || ours(r.Binding) && (r.Account == account || r.Account == "") {
		return guestkit.Gone(id)
	}
	return &sandbox.Error{
		Code: sandbox.CodeUnauthorized, Subject: string(id), Message: "the sandbox was made with another API key or at another address (" + r.Binding + ")", Hint: hint,
	}
}

// Destroy ends a sandbox with erase and forgets it.
func (rs Records) Destroy(ctx context.Context, in *guestkit.Instance, sb string, erase func() error) error {
	if exit, ended := in.Ended(); ended && exit.Reason == sandbox.ReasonKilled {
		return nil
	}
	l, err := rs.Lock(ctx, string(in.ID()))
	if err != nil {
		return err
	}
	defer l.Unlock()
	in.SetDying(true)
	r := l.Read()
	if r.ServiceID == sb {
		r.Destroying = true
		err = l.Write(r)
	}
	if err == nil {
		err = erase()
	}
	if err != nil {
		in.SetDying(false)
		if r.ServiceID == sb && errors.Is(err, driver.ErrElsewhere) {
			r.Destroying, r.AdoptedElsewhere = false, true
			err = errors.Join(err, l.Write(r))
		}
		return err
	}
	in.Finish(guestkit.Killed)
	if r.ServiceID == sb || r.ServiceID == "" {
		return l.Remove()
	}
	return nil
}

// NewKey returns an idempotency key: a random UUID.
func NewKey() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // Read never fails.
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// AddFindings adds to the facts what the outcome of a first request says about the
// service, and where credentials are sent. key and address are how the user sets them.
func AddFindings(facts *driver.Facts, err error, key, address string, urls ...*url.URL) {
	add := func(severity driver.Severity, subject, message, fix string) {
		facts.Findings = append(facts.Findings, driver.Finding{Severity: severity, Subject: subject, Message: message, Fix: fix})
	}
	host := urls[0].Host
	switch code := sandbox.CodeOf(err); {
	case err == nil:
		add(driver.OK, "service", host+" answers and takes the key", "")
	case code == sandbox.CodeUnauthorized || code == sandbox.CodeDenied:
		add(driver.Blocker, "key", host+" does not take the key", "set "+key+" to a key of this service")
	default:
		add(driver.Blocker, "service", err.Error(), "check "+address)
	}
	for _, u := range urls {
		if u.Scheme == "http" && !rest.Loopback(u.Hostname()) {
			add(driver.Warning, "encryption", "credentials are sent to "+u.Host+" without encryption", "use an https address")
		}
	}
	facts.Available = err == nil
}
