package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/machine"
	"github.com/atoll-run/atoll/internal/machine/update"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

const (
	trialTime    = 2 * time.Minute
	openTime     = 15 * time.Second
	downloadTime = time.Hour
	countTime    = 10 * time.Second
)

// programs are the programs of the daemon that a machine's directory has.
func programs(dir string) update.Programs {
	return update.Programs{Dir: filepath.Join(dir, "program")}
}

// newest continues this process in the newest program that the machine has, if
// that is another one. It also runs if updates were turned off since: an older
// program may not know the schema of the database.
func newest(cfg Config) error {
	path, ok := programs(cfg.Dir).Current(cfg.Version)
	if !ok || cfg.Again == nil {
		return nil
	}
	return update.Exec(path, cfg.Again)
}

// Run serves until ctx ends or the enrolment does. This process continues in the
// newest program that the machine has.
func Run(ctx context.Context, cfg Config) error {
	ctx, up, tried := update.Trial(ctx, cfg.Version)
	if tried {
		cfg.Again, cfg.trial = nil, true
	}
	all := programs(cfg.Dir)
	restore := func() error {
		return all.Restore(func(backup string) error { return cfg.Restore(context.WithoutCancel(ctx), backup) })
	}
	if cfg.Again != nil {
		if err := restore(); err != nil {
			return err
		}
		if err := newest(cfg); err != nil {
			cfg.Logger.Error("the updated program cannot be started; going on with the installed one", "error", err)
		}
	}
	for {
		next, err := run(ctx, cfg, up)
		if next == nil {
			return err
		}
		cfg.Logger.Warn("trying a newer program", "version", next.Version)
		err = all.Try(ctx, *next, cfg.Again, cmp.Or(cfg.Trial, trialTime))
		if failed := restore(); failed != nil {
			return errors.Join(err, failed)
		}
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			err = newest(cfg)
		} else if e, missing := Load(cfg.Dir); missing == nil && e.Paused {
			err = errors.Join(err, all.Forgive()) // it must not connect
		}
		cfg.Logger.Error("going on with the former program", "error", err)
	}
}

// wanted returns whether the machine's owner wants updates, and whose.
func (a *Agent) wanted() (yes bool, signer string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.enrolled.Agreed().Has(operator.ConsentUpdates), a.enrolled.Signer
}

// update handles the offers of the daemon. It logs each refusal once.
func (l *link) update() {
	said := ""
	for {
		select {
		case <-l.life.Done():
			return
		case s := <-l.offers:
			err := l.take(s)
			if text := fmt.Sprint(err); err != nil && text != said {
				said = text
				l.a.cfg.Logger.Warn("the update is postponed", "reason", text)
			}
		}
	}
}

// take stages a program, and lets it serve the machine when nothing uses it.
func (l *link) take(s update.Signed) error {
	yes, signer := l.a.wanted()
	if !yes {
		return nil
	}
	o, err := s.Open(signer)
	if err != nil {
		return err
	}
	all := programs(l.a.cfg.Dir)
	if err := all.Check(o, l.a.cfg.Version); err != nil {
		return err
	}
	if l.staged != o.SHA256 {
		if !all.Staged(o) {
			if err := l.stage(o, s.Daemon); err != nil {
				return err
			}
		}
		l.staged = o.SHA256
	}
	if n := l.mux.Len(); n > 0 {
		return fmt.Errorf("version %s waits for %d connections of the daemon", o.Version, n)
	}
	ctx, cancel := context.WithTimeout(l.life, countTime)
	defer cancel()
	n, err := l.a.local.Sandboxes(ctx)
	if err == nil && n > 0 {
		err = fmt.Errorf("version %s waits for the end of %d sandboxes", o.Version, n)
	}
	if err != nil {
		return err
	}
	select {
	case l.a.staged <- o:
	default:
	}
	return nil
}

// stage gets a program of a daemon.
func (l *link) stage(o update.Offer, daemon string) error {
	if daemon == "" || strings.Trim(daemon, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") != "" { // as of rand.Text
		return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "machine.update", Message: "the offer names no daemon"}
	}
	ctx, cancel := context.WithTimeout(l.life, openTime)
	defer cancel()
	s, err := l.mux.Open(ctx, l.subjects.Up()+machine.Ops+"."+daemon+".")
	if err != nil {
		return err
	}
	defer s.Close()
	_ = s.SetDeadline(time.Now().Add(downloadTime))
	defer context.AfterFunc(l.life, func() { _ = s.Close() })()
	return programs(l.a.cfg.Dir).Stage(o, s)
}

// idle ends the connection to the daemon and saves the database if the machine
// has no sandbox, and reports whether it did.
func (a *Agent) idle(ctx context.Context) bool {
	a.orders.Lock()
	defer a.orders.Unlock()
	a.mu.Lock()
	running := a.link != nil
	a.mu.Unlock()
	if yes, _ := a.wanted(); !running || !yes {
		return false
	}
	a.disconnect()
	ctx, cancel := context.WithTimeout(ctx, countTime)
	defer cancel()
	n, err := a.local.Sandboxes(ctx)
	if err == nil && n == 0 {
		err = a.save(ctx)
	}
	if err == nil && n == 0 {
		return true
	}
	if err != nil {
		a.cfg.Logger.Error("the update is postponed", "error", err)
	}
	if err := a.connect(); err != nil {
		a.end(err)
	}
	return false
}

func (a *Agent) save(ctx context.Context) error {
	backup, err := a.local.Backup(ctx)
	if err != nil {
		return err
	}
	defer backup.Close()
	return programs(a.cfg.Dir).Save(backup)
}
