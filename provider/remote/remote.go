// Package remote creates sandboxes with another Atoll daemon, over TCP with an
// API key. Its capabilities are those of the other daemon's provider.
//
// A sandbox's name on the other daemon is its ID here, and its labels record
// the directory that it belongs to. The provider keeps no other records.
package remote

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/internal/identity"
	"github.com/atoll-run/atoll/sandbox"
)

// Name is the name of this provider.
const Name = "remote"

// Options configure the connection to the other daemon.
type Options struct {
	// Dir is a directory for this provider alone, created when it is first needed.
	// Sandboxes belong to it: another directory does not list them.
	Dir string
	// Address is "https://host:port", or "http://host:port" for a loopback
	// address. Empty: the provider is not available.
	Address string
	// Key is an API key of the other daemon.
	Key string
	// KeyFile is a file that holds the key, which is read if Key is empty.
	KeyFile string
	// CAFile is a file of PEM certificates that are trusted in addition to the
	// system's.
	CAFile string
	// Provider selects the other daemon's provider. Empty: its default.
	Provider string
	// Secrets are the names of the other daemon's secrets that sandboxes may use,
	// separated by commas. Empty: none.
	Secrets string
	// AllowHTTP permits an http address that is not a loopback address. The key
	// and all data are then sent unencrypted.
	AllowHTTP bool
	// Binding is what Whose must return. Another daemon, or one whose state was
	// lost, is then refused. Empty: any.
	Binding string
	// Scope replaces Dir as what sandboxes belong to. Empty: an identity in Dir.
	Scope string
	// Name is what messages call the other daemon. Empty: its host.
	Name string
	// Transport sends requests. Nil: a new one.
	Transport http.RoundTripper
}

// FromEnvironment returns the options in ATOLL_REMOTE_HOST, ATOLL_REMOTE_KEY,
// ATOLL_REMOTE_KEY_FILE, ATOLL_REMOTE_CA_FILE, ATOLL_REMOTE_PROVIDER and
// ATOLL_REMOTE_SECRETS.
func FromEnvironment(dir string, lookup func(string) string) Options {
	return Options{
		Dir: dir, Address: lookup("ATOLL_REMOTE_HOST"), Key: lookup("ATOLL_REMOTE_KEY"), KeyFile: lookup("ATOLL_REMOTE_KEY_FILE"),
		CAFile: lookup("ATOLL_REMOTE_CA_FILE"), Provider: lookup("ATOLL_REMOTE_PROVIDER"),
		Secrets: lookup("ATOLL_REMOTE_SECRETS"),
	}
}

// Provider creates sandboxes with another daemon.
type Provider struct {
	opts   Options
	host   string        // of the other daemon, for messages
	client *atoll.Client // nil: no address was given

	lending chan struct{} // has an element while an image is being sent

	mu   sync.Mutex
	peer *peer               // the other daemon's description; nil until requested
	left map[string]*process // ended commands with a Hold and unread output
}

var (
	_ driver.Provider       = (*Provider)(nil)
	_ driver.EgressEnforcer = (*Provider)(nil)
	_ driver.Binder         = (*Provider)(nil)
	_ driver.Adopter        = (*Provider)(nil)
	_ driver.ImageChecker   = (*Provider)(nil)
	_ driver.StateTeller    = (*Provider)(nil)
	_ driver.Restorer       = (*Provider)(nil)
	_ driver.FileRestorer   = (*Provider)(nil)
	_ driver.SnapshotKeeper = (*Provider)(nil)
	_ driver.SecretHolder   = (*Provider)(nil)
)

// New opens the provider. It makes no network call and creates no files.
func New(opts Options) (*Provider, error) {
	if opts.Dir == "" {
		return nil, invalid("directory", "is not given", "")
	}
	p := &Provider{opts: opts, lending: make(chan struct{}, 1)}
	if opts.Address == "" {
		return p, nil
	}
	u, err := url.Parse(opts.Address)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		return nil, invalid("address", "is not the address of a daemon", "write https://host:port")
	case u.Scheme == "http" && !loopback(u.Hostname()) && !opts.AllowHTTP:
		return nil, invalid(u.Host, "the API key would travel in the clear", "use an https address, or set the option allowHTTP where the connection is safe by other means")
	}
	p.host = cmp.Or(opts.Name, u.Host)
	if opts.Key == "" && opts.KeyFile != "" {
		text, err := os.ReadFile(opts.KeyFile)
		if err != nil {
			return nil, &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "remote.open", Subject: opts.KeyFile, Message: "the file with the API key cannot be read", Cause: err}
		}
		opts.Key = strings.TrimSpace(string(text))
	}
	if opts.Transport == nil {
		if opts.Transport, err = Transport(opts.CAFile); err != nil {
			return nil, err
		}
	}
	p.client, err = atoll.New(atoll.Options{Host: opts.Address, Key: opts.Key, Transport: opts.Transport})
	return p, err
}

func invalid(subject, message, hint string) error {
	return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "remote.open", Subject: subject, Message: message, Hint: hint}
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// Limits of idle connections.
const (
	idle     = 10 * time.Second
	maxIdle  = 16
	dialWait = 10 * time.Second
)

// Silence is how long a machine may not acknowledge what was sent to it, or a
// probe, before its connections end. Otherwise requests to a machine that is off
// or cut off would wait for a quarter of an hour.
const Silence = 30 * time.Second

var probes = net.KeepAliveConfig{Enable: true, Idle: Silence / 3, Interval: Silence / 6, Count: 4}

// Transport sends requests and trusts the certificates of a file in addition to
// the system's. The file's name may be empty.
func Transport(caFile string) (*http.Transport, error) {
	t := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: dialWait, KeepAliveConfig: probes, Control: limitSilence}).DialContext, TLSHandshakeTimeout: dialWait,
		DisableCompression: true, MaxIdleConnsPerHost: maxIdle, IdleConnTimeout: idle,
	}
	if caFile == "" {
		return t, nil
	}
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "remote.open", Subject: caFile, Message: "the file with the certificates cannot be read", Cause: err}
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, invalid(caFile, "holds no PEM certificate", "")
	}
	t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	return t, nil
}

// scope identifies the provider's directory among all users of the other
// daemon.
func (p *Provider) scope() (string, error) {
	if p.opts.Scope != "" {
		return p.opts.Scope, nil
	}
	if err := os.MkdirAll(p.opts.Dir, 0o700); err != nil {
		return "", err
	}
	return identity.Of(filepath.Join(p.opts.Dir, "scope"))
}

// ErrorCode implements driver.Provider.
func (*Provider) ErrorCode(err error) sandbox.Code {
	if code := sandbox.CodeOf(err); code != sandbox.CodeInternal || isTyped(err) {
		return code
	}
	return ""
}

// Close implements driver.Provider.
func (p *Provider) Close() error {
	p.mu.Lock()
	left := p.left
	p.left = nil
	p.mu.Unlock()
	for _, one := range left {
		one.giveUp()
	}
	if p.client == nil {
		return nil
	}
	return p.client.Close()
}

// State implements driver.StateTeller, because other clients and the rules of
// the other daemon pause sandboxes.
func (p *Provider) State(ctx context.Context, id sandbox.ID) (sandbox.State, error) {
	b, err := p.mine(ctx, id)
	if err != nil {
		return "", err
	}
	return b.Info().State, nil
}
