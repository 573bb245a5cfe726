package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/atoll-run/atoll/internal/machine"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Enrolled is what a machine keeps of its enrolment, in a file that only its
// owner can read.
type Enrolled struct {
	URL       string `json:"url"` // of the NATS server
	CA        string `json:"ca,omitempty"`
	Seed      string `json:"seed"` // the machine's private key, which never leaves it
	Machine   string `json:"machine"`
	Tenant    string `json:"tenant"`
	Name      string `json:"name"`
	Mode      string `json:"mode"`
	Directory string `json:"directory,omitempty"`
	// Consents are what the owner agreed to and has not withdrawn.
	Consents []Consent `json:"consents"`
	// Signer is the public key of the daemon's account, from the enrolment.
	Signer string `json:"signer,omitempty"`
	Paused bool   `json:"paused,omitempty"`
}

// Consent is something that the owner of a machine agreed to.
type Consent struct {
	To   operator.Consent `json:"to"`
	Text string           `json:"text"` // as it was shown
	At   time.Time        `json:"at"`
}

// Agreed returns what the owner agreed to.
func (e *Enrolled) Agreed() (all operator.Consents) {
	for _, c := range e.Consents {
		all = append(all, c.To)
	}
	return all.Known()
}

// consent stores that the owner agreed to something or, without a text, does so
// no longer.
func (e *Enrolled) consent(to operator.Consent, text string) {
	e.Consents = slices.DeleteFunc(slices.Clone(e.Consents), func(c Consent) bool { return c.To == to })
	if text != "" {
		e.Consents = append(e.Consents, Consent{to, text, time.Now().UTC()})
	}
}

// UnmarshalJSON also reads files of programs in which every consent had a field.
func (e *Enrolled) UnmarshalJSON(text []byte) error {
	type plain Enrolled
	var old struct{ Consent, Screen, Updates *Consent }
	err := errors.Join(json.Unmarshal(text, (*plain)(e)), json.Unmarshal(text, &old))
	for to, c := range map[operator.Consent]*Consent{operator.Consent(e.Mode): old.Consent, operator.ConsentScreen: old.Screen, operator.ConsentUpdates: old.Updates} {
		if c != nil {
			e.Consents = append(e.Consents, Consent{to, c.Text, c.At})
		}
	}
	return err
}

const enrolmentFile = "enrolment.json"

// Load reads the enrolment of a machine's directory. CodeNotFound: there is none.
func Load(dir string) (e Enrolled, err error) {
	text, err := os.ReadFile(filepath.Join(dir, enrolmentFile))
	if errors.Is(err, fs.ErrNotExist) {
		return e, &sandbox.Error{
			Code: sandbox.CodeNotFound, Op: "machine.load", Subject: dir, Message: "this machine is not enrolled", Hint: "enrol it with: atoll machine join URL",
		}
	}
	if err != nil {
		return e, err
	}
	return e, json.Unmarshal(text, &e)
}

// save writes the enrolment in one step.
func (e *Enrolled) save(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	return machine.WriteFile(filepath.Join(dir, enrolmentFile), e)
}

// Request describes an enrolment.
type Request struct {
	Dir     string // of the machine's files
	URL     string
	CA      string // file of PEM certificates to trust; empty: the system's
	Name    string
	Mode    string
	Workdir string // of the mode whole-machine
	Token   string // empty: a person approves a code
	Version string
	// Consents are what the owner agreed to, with the texts that were shown. One is to
	// the mode.
	Consents map[operator.Consent]string
}

// Enrol asks a daemon for an enrolment and stores it. show is called with the
// code that a person has to approve. It waits until that has happened.
func Enrol(ctx context.Context, r Request, show func(code string, life time.Duration)) (Enrolled, error) {
	if _, err := Load(r.Dir); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		if err == nil {
			err = &sandbox.Error{
				Code: sandbox.CodeConflict, Op: "machine.join", Subject: r.Dir, Message: "this machine is enrolled already",
				Hint: "leave first, with: atoll machine leave",
			}
		}
		return Enrolled{}, err
	}
	pair, err := nkeys.CreateUser()
	if err != nil {
		return Enrolled{}, err
	}
	seed, err := pair.Seed()
	if err != nil {
		return Enrolled{}, err
	}
	e := Enrolled{
		URL: r.URL, CA: r.CA, Seed: string(seed), Name: r.Name, Mode: r.Mode, Directory: r.Workdir,
	}
	for to, text := range r.Consents {
		e.consent(to, text)
	}
	options, public, err := e.options("enrol")
	if err != nil {
		return e, err
	}
	conn, err := nats.Connect(e.URL, options...)
	if err != nil {
		return e, &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "machine.join", Subject: e.URL, Message: err.Error(), Cause: err}
	}
	defer conn.Close()
	answers, err := conn.SubscribeSync(machine.EnrolSubject(public) + machine.ReplySuffix)
	if err != nil {
		return e, err
	}
	ask := machine.Enrolment{
		Name: r.Name, Mode: r.Mode, Directory: r.Workdir, OS: runtime.GOOS, Arch: runtime.GOARCH, Version: r.Version, Token: r.Token,
		Consents: e.Agreed(),
	}
	for {
		a, err := request(ctx, conn, answers, public, ask)
		if err != nil {
			return e, err
		}
		switch a.State {
		case machine.Authorized:
			e.Machine, e.Tenant, e.Signer = a.Machine, a.Tenant, a.Signer
			for _, to := range e.Agreed() {
				if to != operator.Consent(e.Mode) && !a.Consents.Has(to) { // the approver did not accept it
					e.consent(to, "")
				}
			}
			return e, e.save(r.Dir)
		case machine.Pending:
			if a.Code != "" {
				show(a.Code, a.Life)
			}
		case machine.Expired:
			return e, &sandbox.Error{Code: sandbox.CodeTimeout, Op: "machine.join", Message: "nobody approved the code in time"}
		default:
			message := "the enrolment was refused"
			if a.Error != "" {
				message += ": " + a.Error
			}
			return e, &sandbox.Error{Code: sandbox.CodeDenied, Op: "machine.join", Message: message}
		}
		ask = machine.Enrolment{Poll: true}
		select {
		case <-time.After(max(a.Every, time.Second)):
		case <-ctx.Done():
			return e, ctx.Err()
		}
	}
}

// answerTime is how long a request may take before it is sent again.
const answerTime = 5 * time.Second

// request sends a request until it is answered. Repeating it changes nothing but
// the code.
func request(ctx context.Context, conn *nats.Conn, answers *nats.Subscription, public string, ask machine.Enrolment) (a machine.Answer, err error) {
	text, err := json.Marshal(ask)
	if err != nil {
		return a, err
	}
	for range 6 {
		if err := conn.Publish(machine.EnrolSubject(public), text); err != nil {
			return a, err
		}
		wait, cancel := context.WithTimeout(ctx, answerTime)
		msg, err := answers.NextMsgWithContext(wait)
		cancel()
		if err == nil {
			return a, json.Unmarshal(msg.Data, &a)
		}
		if ctx.Err() != nil {
			return a, ctx.Err()
		}
	}
	return a, &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "machine.join", Message: "the daemon does not answer"}
}

// options returns the options of a connection, which proves the machine's key,
// and the public key.
func (e *Enrolled) options(instance string) (options []nats.Option, public string, err error) {
	pair, err := nkeys.FromSeed([]byte(e.Seed))
	if err != nil {
		return nil, "", err
	}
	if public, err = pair.PublicKey(); err != nil {
		return nil, "", err
	}
	options = []nats.Option{nats.Name(instance), nats.Nkey(public, pair.Sign), nats.NoEcho()}
	plain := strings.HasPrefix(e.URL, "nats://")
	switch {
	case plain && !loopback(e.URL):
		return nil, "", &sandbox.Error{
			Code: sandbox.CodeInvalid, Op: "machine.join", Subject: e.URL, Message: "the connection would not be encrypted", Hint: "write tls://HOST:PORT",
		}
	case plain:
		return options, public, nil
	case !strings.HasPrefix(e.URL, "tls://"):
		return nil, "", &sandbox.Error{Code: sandbox.CodeInvalid, Op: "machine.join", Subject: e.URL, Message: "is not tls://HOST:PORT"}
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if e.CA != "" {
		text, err := os.ReadFile(e.CA)
		if err != nil {
			return nil, "", err
		}
		if config.RootCAs, err = x509.SystemCertPool(); err != nil {
			config.RootCAs = x509.NewCertPool()
		}
		if !config.RootCAs.AppendCertsFromPEM(text) {
			return nil, "", &sandbox.Error{Code: sandbox.CodeInvalid, Op: "machine.join", Subject: e.CA, Message: "holds no PEM certificate"}
		}
	}
	return append(options, nats.Secure(config)), public, nil
}
