package daemon

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/control/guard"
	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/server/console"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

const (
	// codeLifetime is how long a link to the console is valid.
	codeLifetime = 2 * time.Minute
	// maxCodes bounds the links that nobody has used.
	maxCodes = 256
	// consoleKey is the name of the API keys of pages that a link signed in.
	consoleKey = "console"
)

// consoleFace is the state of the web console. It implements console.Keys.
type consoleFace struct {
	d *Daemon

	mu     sync.Mutex
	listen string               // the address that is served; empty: none of its own
	codes  map[string]time.Time // when unused codes end
}

func (f *consoleFace) address() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.listen
}

// keptConsole returns the file with the address for later starts.
func (d *Daemon) keptConsole() string { return filepath.Join(d.node.Dir(), "console.json") }

// openConsole reads the address at which an earlier daemon served the console.
func (d *Daemon) openConsole() error {
	d.console.d, d.console.codes = d, map[string]time.Time{}
	text, err := os.ReadFile(d.keptConsole())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var kept operator.ConsoleSettings
	if err = errors.Join(err, json.Unmarshal(text, &kept)); err != nil {
		return &sandbox.Error{
			Code: sandbox.CodeUnavailable, Op: "daemon.start", Subject: d.keptConsole(), Message: "cannot be read", Cause: err,
			Hint: "remove it, and run again: atoll console",
		}
	}
	d.console.listen = kept.Listen
	return nil
}

// listenConsole serves the console where an earlier daemon did. If another
// program has taken the address, the daemon starts without it.
func (d *Daemon) listenConsole() error {
	addr := d.console.address()
	if addr == "" {
		return nil
	}
	l, err := listenTCP(addr, nil, true, "http/1.1")
	if err != nil {
		d.opts.Logger.Error("the console is not served", "error", err)
		d.console.listen = ""
		return nil
	}
	d.serve(l)
	return nil
}

// OpenConsole implements api.Machine.
func (o owned) OpenConsole(ctx context.Context, s operator.ConsoleSettings) (link operator.ConsoleLink, err error) {
	err = o.AsOwner(ctx, ops.DaemonConsole, "", func(ctx context.Context) (err error) {
		link, err = o.d.console.open(ctx, s)
		return err
	})
	return link, err
}

func (f *consoleFace) open(ctx context.Context, s operator.ConsoleSettings) (link operator.ConsoleLink, err error) {
	base, began, err := f.serve(s.Listen)
	if err != nil {
		return link, err
	}
	if began {
		g, err := f.d.node.Gateway()
		if err == nil {
			err = g.Reconfigure(ctx) // so that sandboxes cannot reach the new port
		}
		if err != nil {
			return link, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(f.codes, func(_ string, ends time.Time) bool { return !now.Before(ends) })
	if len(f.codes) >= maxCodes {
		return link, &sandbox.Error{Code: sandbox.CodeExhausted, Message: "too many links to the console are unused", Hint: "try again in two minutes"}
	}
	code := rand.Text()
	link = operator.ConsoleLink{URL: base + console.Root + "#code=" + code, Expires: now.Add(codeLifetime)}
	f.codes[code] = link.Expires
	return link, nil
}

// serve makes sure that the console is served. It returns the base of its URL,
// and whether it began to listen.
func (f *consoleFace) serve(listen string) (base string, began bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	d := f.d
	if d.tcp != nil && listen == "" {
		scheme, host := "http://", d.tcp.String()
		if d.opts.TLS != nil {
			scheme = "https://"
		}
		if _, port, _ := net.SplitHostPort(host); len(d.opts.Hosts) > 0 {
			host = net.JoinHostPort(d.opts.Hosts[0], port)
		}
		return scheme + host, false, nil
	}
	if f.listen != "" && (listen == "" || listen == f.listen) {
		return "http://" + f.listen, false, nil
	}
	if f.listen != "" {
		return "", false, &sandbox.Error{
			Code: sandbox.CodeConflict, Subject: f.listen, Message: "the console is already served there",
			Hint: "leave out --listen to use that address",
		}
	}
	l, err := listenTCP(cmp.Or(listen, operator.DefaultConsole), nil, true, "http/1.1")
	if err != nil && listen == "" {
		l, err = listenTCP("127.0.0.1:0", nil, true, "http/1.1")
	}
	if err != nil {
		return "", false, err
	}
	f.listen = l.Addr().String()
	d.serve(l)
	text, err := json.Marshal(operator.ConsoleSettings{Listen: f.listen})
	if err != nil {
		return "", false, err
	}
	made := d.keptConsole() + ".new"
	if err := errors.Join(os.WriteFile(made, text, 0o600), os.Rename(made, d.keptConsole())); err != nil {
		return "", false, err
	}
	return "http://" + f.listen, true, nil
}

// Redeem implements console.Keys.
func (f *consoleFace) Redeem(ctx context.Context, code string) (string, error) {
	f.mu.Lock()
	ends, ok := f.codes[code]
	delete(f.codes, code)
	f.mu.Unlock()
	if !ok || !time.Now().Before(ends) {
		return "", &sandbox.Error{Code: sandbox.CodeUnauthorized, Message: "the link was used already, or is too old", Hint: "get a new one with: atoll console"}
	}
	// Only the owner of the machine gets links.
	owner := guard.WithPrincipal(ctx, key.Peer(key.DefaultTenant, uint32(os.Geteuid())))
	k, err := f.d.services.Tenants.CreatePageKey(owner, operator.NewKey{Name: consoleKey, Verbs: []string{string(key.Admin)}, Expires: console.Lifetime})
	return k.Token, err
}

// Check implements console.Keys.
func (f *consoleFace) Check(ctx context.Context, token string) error {
	_, err := f.d.services.Tenants.Authenticate(ctx, token)
	return err
}

// End implements console.Keys.
func (f *consoleFace) End(ctx context.Context, token string) error {
	who, err := f.d.services.Tenants.Authenticate(ctx, token)
	if err != nil {
		return err
	}
	ctx = guard.WithPrincipal(ctx, who)
	all, err := f.d.services.Tenants.Keys(ctx)
	if err != nil {
		return nil //nolint:nilerr // only an admin key lists keys, and those of links are
	}
	for _, k := range all {
		if k.ID == who.Key && k.Name == consoleKey && !k.Expires.IsZero() {
			return f.d.services.Tenants.RevokeKey(ctx, k.ID)
		}
	}
	return nil
}
