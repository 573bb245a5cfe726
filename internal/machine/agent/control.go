package agent

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Status says how the program of a machine is.
type Status struct {
	Machine   string    `json:"machine"`
	Name      string    `json:"name"`
	Tenant    string    `json:"tenant"`
	URL       string    `json:"url"`
	Mode      string    `json:"mode"`
	Directory string    `json:"directory,omitempty"`
	Consents  []Consent `json:"consents"`
	Version   string    `json:"version,omitempty"` // of the program that serves
	Trial     bool      `json:"trial,omitempty"`   // another process serves after it
	Paused    bool      `json:"paused"`
	Running   bool      `json:"running"`
	Connected bool      `json:"connected"`
	Streams   int       `json:"streams"`
}

// Orders to the program of a machine.
const (
	orderStatus = "status"
	orderPause  = "pause"
	orderResume = "resume"
	orderLeave  = "leave"

	// Orders about consents are the consent, agrees, and what the owner agrees to; or
	// withdraws, and the consent.
	agrees    = ": "
	withdraws = "no_"
)

type reply struct {
	Status Status
	Error  string
}

const controlSocket = "agent.sock"

// listen opens the socket for orders of the machine's owner. One process serves
// a directory.
func (a *Agent) listen() (net.Listener, error) {
	path := filepath.Join(a.cfg.Dir, controlSocket)
	if conn, err := net.Dial("unix", path); err == nil {
		conn.Close()
		return nil, &sandbox.Error{Code: sandbox.CodeConflict, Op: "machine.serve", Subject: a.cfg.Dir, Message: "this machine is being served already"}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err == nil {
		err = os.Chmod(path, 0o600) // the directory is its owner's alone
	}
	return l, err
}

func (a *Agent) control(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			var order string
			_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
			if json.NewDecoder(conn).Decode(&order) != nil {
				return
			}
			err := a.obey(order)
			r := reply{Status: a.status()}
			if err != nil {
				r.Error = err.Error()
			}
			_ = json.NewEncoder(conn).Encode(r)
			if order == orderLeave && err == nil {
				a.end(nil)
			}
		}()
	}
}

// haltTime limits how long an order may take.
const haltTime = time.Minute

// obey carries out an order. Pausing ends the connection first, so that nothing
// new begins.
func (a *Agent) obey(order string) error {
	if order == orderStatus {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), haltTime)
	defer cancel()
	a.orders.Lock()
	defer a.orders.Unlock()
	if to, ok := strings.CutPrefix(order, withdraws); ok {
		return a.consent(ctx, operator.Consent(to), "")
	}
	if to, text, ok := strings.Cut(order, agrees); ok {
		return a.consent(ctx, operator.Consent(to), text)
	}
	switch order {
	case orderPause:
		a.disconnect()
		return errors.Join(a.setPaused(true), a.local.Halt(ctx))
	case orderResume:
		a.mu.Lock()
		running := a.link != nil
		a.mu.Unlock()
		if running {
			return nil
		}
		if err := errors.Join(a.setPaused(false), a.local.Continue(ctx)); err != nil {
			return err
		}
		return a.connect()
	case orderLeave:
		a.disconnect()
		return errors.Join(a.local.Clear(ctx), forget(a.cfg.Dir))
	}
	return nil
}

func (a *Agent) setPaused(paused bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.enrolled.Paused = paused
	return a.enrolled.save(a.cfg.Dir)
}

// consent stores what the owner agreed to or, without a text, withdrew. If that is
// the screen, commands that run end, because they have what they started with.
func (a *Agent) consent(ctx context.Context, to operator.Consent, text string) error {
	if err := changeable(to); err != nil {
		return err
	}
	a.mu.Lock()
	a.enrolled.consent(to, text)
	paused, err := a.enrolled.Paused, a.enrolled.save(a.cfg.Dir)
	a.mu.Unlock()
	if to != operator.ConsentScreen {
		return err
	}
	a.local.Share(text != "")
	if err != nil || paused {
		return err
	}
	a.disconnect()
	if err := errors.Join(a.local.Halt(ctx), a.local.Continue(ctx)); err != nil {
		return err
	}
	return a.connect()
}

// agreed returns what the owner agrees to now.
func (a *Agent) agreed() operator.Consents {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.enrolled.Agreed()
}

func (a *Agent) status() Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := statusOf(&a.enrolled)
	s.Running, s.Version, s.Trial = true, a.cfg.Version, a.cfg.trial
	if a.link != nil {
		s.Connected, s.Streams = a.link.conn.IsConnected(), a.link.mux.Len()
	}
	return s
}

func statusOf(e *Enrolled) Status {
	return Status{
		Machine: e.Machine, Name: e.Name, Tenant: e.Tenant, URL: e.URL, Mode: e.Mode, Directory: e.Directory, Consents: e.Consents, Paused: e.Paused,
	}
}

// forget removes the enrolment, and the programs of the daemon.
func forget(dir string) error {
	return errors.Join(programs(dir).Clear(), os.Remove(filepath.Join(dir, enrolmentFile)))
}

// order sends an order to the program that serves a directory. running is false
// if there is none.
func order(dir, what string) (s Status, running bool, err error) {
	conn, err := net.Dial("unix", filepath.Join(dir, controlSocket))
	if err != nil {
		return s, false, nil
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(haltTime + 10*time.Second))
	if err := json.NewEncoder(conn).Encode(what); err != nil {
		return s, true, err
	}
	var r reply
	if err := json.NewDecoder(conn).Decode(&r); err != nil {
		return s, true, err
	}
	if r.Error != "" {
		name, _, _ := strings.Cut(what, ":")
		err = &sandbox.Error{Code: sandbox.CodeInternal, Op: "machine." + name, Message: r.Error}
	}
	return r.Status, true, err
}

// change gives an order. Without a program that serves the directory, act
// changes the enrolment.
func change(dir, what string, act func(e *Enrolled) error) (Status, error) {
	e, err := Load(dir)
	if err != nil {
		return Status{}, err
	}
	s, running, err := order(dir, what)
	if err != nil || running {
		return s, err
	}
	err = act(&e)
	return statusOf(&e), err
}

// Look returns how the program of a machine is.
func Look(dir string) (Status, error) {
	return change(dir, orderStatus, func(*Enrolled) error { return nil })
}

// Pause stops all commands at once and ends the connection, until Resume.
func Pause(dir string) (Status, error) {
	return change(dir, orderPause, func(e *Enrolled) error {
		e.Paused = true
		return e.save(dir)
	})
}

// Resume ends a pause.
func Resume(dir string) (Status, error) {
	return change(dir, orderResume, func(e *Enrolled) error {
		e.Paused = false
		return e.save(dir)
	})
}

// Leave removes all sandboxes and the enrolment. A program that serves the
// machine ends. Without one, the newest program that the machine has removes the
// sandboxes.
func Leave(ctx context.Context, cfg Config) (Status, error) {
	return change(cfg.Dir, orderLeave, func(e *Enrolled) error {
		if err := newest(cfg); err != nil {
			return err
		}
		l, err := cfg.Serve(ctx, *e)
		if err != nil {
			return err
		}
		return errors.Join(l.Clear(ctx), l.Close(), forget(cfg.Dir))
	})
}

// changeable refuses consents that a machine joins with for good.
func changeable(to operator.Consent) error {
	if to == operator.ConsentScreen || to == operator.ConsentUpdates {
		return nil
	}
	return &sandbox.Error{
		Code: sandbox.CodeInvalid, Op: "machine.consent", Subject: string(to), Message: "cannot be agreed to or withdrawn by itself", Hint: "end it with: atoll machine leave",
	}
}

// SetConsent stores that the owner of a machine agreed to something, with the text
// that was shown. Without a text, the consent is withdrawn: what uses the screen
// ends at once; the program that serves the machine stays.
func SetConsent(dir string, to operator.Consent, text string) (Status, error) {
	if err := changeable(to); err != nil {
		return Status{}, err
	}
	if text == "" {
		return change(dir, withdraws+string(to), func(e *Enrolled) error {
			e.consent(to, "")
			return e.save(dir)
		})
	}
	e, err := Load(dir)
	switch {
	case err != nil:
	case to == operator.ConsentScreen && e.Mode != operator.ModeWholeMachine:
		err = &sandbox.Error{
			Code: sandbox.CodeConflict, Op: "machine.screen", Subject: dir, Message: "the machine offers sandboxes, which have screens of their own",
			Hint: "to offer the machine itself: atoll machine leave, and atoll machine join --whole-machine DIR URL",
		}
	case to == operator.ConsentUpdates && e.Signer == "":
		err = &sandbox.Error{
			Code: sandbox.CodeUnsupported, Op: "machine.updates", Subject: dir, Message: "the machine joined with a program that kept no key of the daemon",
			Hint: "join again: atoll machine leave, and atoll machine join URL",
		}
	case to == operator.ConsentUpdates:
		err = programs(dir).Forgive()
	}
	if err != nil {
		return Status{}, err
	}
	return change(dir, string(to)+agrees+text, func(e *Enrolled) error {
		e.consent(to, text)
		return e.save(dir)
	})
}
