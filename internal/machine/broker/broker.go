// Package broker runs a NATS server for self-hosted machines alone. It must not
// be part of a program that runs sandboxes: the server's package reads the
// program's own /proc every second, and the kernel of a sandbox, which is the
// same program, is killed when it does that.
package broker

import (
	"crypto/rand"
	"crypto/tls"
	"errors"
	"net"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/atoll-run/atoll/internal/machine/hub"
	"github.com/atoll-run/atoll/sandbox"
)

// Options configure a server.
type Options struct {
	Listen string      // HOST:PORT
	TLS    *tls.Config // nil: none
	// Former describes an earlier server whose daemon and machines shall find this
	// one. Nil: they must be told.
	Former *Description
}

const (
	account    = "ATOLL"
	startTime  = 10 * time.Second
	maxConns   = 1024
	maxPending = 32 << 20 // bytes that wait for one connection
	maxControl = 4 << 10
	maxPayload = 256 << 10
)

// Server is a running NATS server. The caller closes it.
type Server struct {
	ns     *server.Server
	issuer []byte
	user   string
	secret string
}

// Start starts a server. Only connections that a hub lets in can do anything.
func Start(o Options) (*Server, error) {
	host, port, err := net.SplitHostPort(o.Listen)
	parsed, badPort := strconv.ParseUint(port, 10, 16)
	if err != nil || badPort != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "machines.open", Subject: o.Listen, Message: "is not HOST:PORT"}
	}
	number := int(parsed)
	if number == 0 {
		number = server.RANDOM_PORT
	}
	s, issuer, err := secrets(o.Former)
	if err != nil {
		return nil, err
	}
	acc := server.NewAccount(account)
	opts := &server.Options{
		ServerName: "atoll", Host: host, Port: number, NoLog: true, NoSigs: true, AlwaysEnableNonce: true,
		MaxConn: maxConns, MaxPayload: maxPayload, MaxPending: maxPending, MaxControlLine: maxControl, AuthTimeout: 5,
		Accounts: []*server.Account{acc}, Users: []*server.User{{Username: s.user, Password: s.secret, Account: acc}},
		AuthCallout:  &server.AuthCallout{Issuer: issuer, Account: account, AuthUsers: []string{s.user}},
		PingInterval: 20 * time.Second, MaxPingsOut: 2, DisableShortFirstPing: true,
	}
	if o.TLS != nil {
		opts.TLS, opts.TLSConfig, opts.TLSTimeout = true, o.TLS.Clone(), 5
		opts.TLSConfig.NextProtos = nil
	}
	if s.ns, err = server.NewServer(opts); err != nil {
		return nil, err
	}
	s.ns.Start()
	if !s.ns.ReadyForConnections(startTime) {
		s.Close()
		return nil, &sandbox.Error{
			Code: sandbox.CodeUnavailable, Op: "machines.open", Subject: o.Listen, Message: "the address cannot be used",
			Hint: "choose another port, or end the program that uses this one",
		}
	}
	return s, nil
}

// daemonUser is the name with which a daemon connects.
const daemonUser = "daemon"

// secrets returns a server with the secrets of an earlier one, or with new ones,
// and the public key of its account.
func secrets(former *Description) (_ *Server, issuer string, err error) {
	var pair nkeys.KeyPair
	s := &Server{user: daemonUser}
	if former == nil {
		s.secret = rand.Text()
		pair, err = nkeys.CreateAccount()
	} else {
		s.secret = former.Password
		pair, err = nkeys.FromSeed([]byte(former.Issuer))
	}
	if err == nil {
		issuer, err = pair.PublicKey()
	}
	if err == nil {
		s.issuer, err = pair.Seed()
	}
	if former != nil && (err != nil || !nkeys.IsValidPublicAccountKey(issuer) || former.Account != account || former.User != daemonUser || former.Password == "") {
		return nil, "", &sandbox.Error{Code: sandbox.CodeInvalid, Op: "machines.open", Message: "the description is not of a server of Atoll", Cause: err}
	}
	return s, issuer, err
}

// Addr returns the address of the server.
func (s *Server) Addr() net.Addr { return s.ns.Addr() }

// Configure completes the configuration of a hub that uses the server.
func (s *Server) Configure(c *hub.Config) {
	c.URL, c.Account, c.Issuer = "nats://in-process", account, s.issuer
	c.Options = append(c.Options, nats.InProcessServer(s.ns), nats.UserInfo(s.user, s.secret))
	c.Kick = func(id string, client uint64) error {
		if id != s.ns.ID() {
			return errors.New("the connection was to another server")
		}
		return s.ns.DisconnectClientByID(client)
	}
}

// Description is what a daemon in another program needs to use the server. Its
// fields are those of the file of atoll up --machines-file.
type Description struct {
	URL      string `json:"url"`
	User     string `json:"user"`
	Password string `json:"password"`
	Account  string `json:"account"`
	Issuer   string `json:"issuer"` // seed of the account key, a secret
}

// Describe returns the description of the server under an address that the
// daemon reaches.
func (s *Server) Describe(url string) Description {
	return Description{URL: url, User: s.user, Password: s.secret, Account: account, Issuer: string(s.issuer)}
}

// Close ends the server.
func (s *Server) Close() {
	s.ns.Shutdown()
	s.ns.WaitForShutdown()
}
