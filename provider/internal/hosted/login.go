package hosted

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"strings"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/internal/credential"
	"github.com/atoll-run/atoll/provider/internal/rest"
	"github.com/atoll-run/atoll/sandbox"
)

// Opening describes how a driver reaches a service that has one address and one
// secret.
type Opening struct {
	Name    string // of the provider
	Version string // of the service's API
	// Key is the variable of the secret, and What the secret is. Empty: an API key.
	// The variables of its file and its command have the suffixes _FILE and _COMMAND.
	Key, What string
	// URL is the variable of the service's address, and Public the usual address.
	// Without one, users run the service themselves: they set its address, and it
	// may work without a key.
	URL, Public string
	// ParseError parses an error of the service: see rest.Client.
	ParseError func(status int, body []byte) (code, message string, ok bool)
}

// Connection is the part that the options of all drivers have in common.
type Connection struct {
	// Dir is a directory for this provider alone. It is created when it is first
	// needed. Sandboxes belong to it: another directory must adopt them first.
	Dir string `json:"-"`
	// Key is the source of the account's secret. It is sent only to the service, and
	// is in no error.
	Key *credential.Source `json:"-"`
	// URL is the address of the API. Empty: the service's.
	URL string `json:"-"`
	// Executable is a static program that imports internal/guest/early. It is the
	// guest if none is embedded. Empty: the running program.
	Executable string `json:"-"`
	// Transport sends requests. Nil: a new one.
	Transport http.RoundTripper `json:"-"`
}

// Place is a setting that is part of an account's name, such as a team.
type Place struct {
	Env, What, Value string
	Optional         bool
}

// Connection returns what the environment says of a connection.
func (o *Opening) Connection(dir string, lookup func(string) string) Connection {
	return Connection{Dir: dir, Key: credential.FromEnvironment(o.Key, lookup), URL: strings.TrimSpace(lookup(o.URL))}
}

// Login is a client of a service, with the credential of an account. It
// implements a part of Service.
type Login struct {
	rest.Client
	Key *credential.Source

	opening *Opening
	dir     string
	places  []Place
}

// Login returns a client of the service that sends the key as a bearer token. It
// makes no network call.
func (o *Opening) Login(c *Connection, places ...Place) (*Login, error) {
	if c.Dir == "" {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Op: o.Name + ".open", Message: "no directory given"}
	}
	base := &url.URL{}
	if address := cmp.Or(c.URL, o.Public); address != "" {
		var err error
		if base, err = rest.ParseURL(o.Name+".open", o.URL, address); err != nil {
			return nil, err
		}
	}
	key := c.Key
	if key == nil {
		key = credential.New(o.Key, "", "", "")
	}
	l := &Login{Key: key, opening: o, dir: c.Dir, places: places}
	l.Client = rest.Client{
		HTTP: rest.NewHTTP(c.Transport), Base: base, ParseError: o.ParseError, Fresh: l.fresh,
		Sign: func(h http.Header) {
			if now := key.Current(); now != "" {
				h.Set("Authorization", "Bearer "+now)
			}
		},
		Hidden: func() []string { return []string{key.Current()} }, Hint: "set " + l.credential() + " to a key of this service",
	}
	return l, nil
}

// Core returns the core of a provider that uses the service.
func (l *Login) Core(service Service) *Core {
	original := []string{l.opening.Key}
	for _, p := range l.places {
		original = append(original, p.Env)
	}
	hint := "use its original " + strings.Join(original, ", ") + " and " + l.opening.URL
	return &Core{Records: Open(l.dir), Name: l.opening.Name, Service: service, API: &l.Client, Hint: hint}
}

// credential names the variables of the credential.
func (l *Login) credential() string {
	names := []string{l.opening.Key}
	for _, p := range l.places {
		if !p.Optional {
			names = append(names, p.Env)
		}
	}
	return strings.Join(names, " and ")
}

// unset returns the first setting that is missing.
func (l *Login) unset() (missing Place, ok bool) {
	all := []Place{{Env: l.opening.URL, What: "address", Value: l.Base.Host}}
	if l.opening.Public != "" {
		all = append(all, Place{Env: l.opening.Key, What: cmp.Or(l.opening.What, "API key"), Value: l.Key.Account()})
	}
	for _, p := range append(all, l.places...) {
		if p.Value == "" && !p.Optional {
			return p, true
		}
	}
	return Place{}, false
}

// fresh is rest.Client.Fresh. Without a key, the service itself refuses requests.
func (l *Login) fresh(ctx context.Context, refused bool) error {
	if p, missing := l.unset(); missing && p.Env != l.opening.Key {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Subject: p.What, Message: "is not set", Hint: "set " + p.Env}
	}
	return l.Key.Fresh(ctx, refused)
}

// Credential implements Service.
func (l *Login) Credential() Credential {
	c := Credential{Name: l.Key.Account(), Key: l.Key.Value()}
	for _, p := range l.places {
		c.Name += "\n" + p.Value
		if c.Key != "" {
			c.Key += "\n" + p.Value
		}
	}
	return c
}

// Facts implements driver.Provider.Probe: see Core.Facts. More addresses are those
// where credentials go, too.
func (l *Login) Facts(ctx context.Context, c *Core, d *Description, ask func(context.Context) error, more ...*url.URL) (driver.Facts, error) {
	missing, unset := l.unset()
	d.Version, d.Needs, d.What = l.opening.Version, missing.Env, missing.What
	d.Credential, d.Address = l.credential(), cmp.Or(d.Address, l.opening.URL)
	return c.Facts(ctx, d, !unset, ask, append([]*url.URL{l.Base}, more...)...)
}
