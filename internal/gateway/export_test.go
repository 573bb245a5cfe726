package gateway

import (
	"crypto/rand"
	"crypto/x509"
	"math/big"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// KeyOf returns all forms of the private key of a sandbox's authority, and the
// key that it is derived from, to look for them where they must not be.
func (g *Gateway) KeyOf(id sandbox.ID) (forms [][]byte, err error) {
	g.mu.Lock()
	add := g.links[id].add
	g.mu.Unlock()
	cert, err := x509.ParseCertificate(add.CACert)
	if err != nil {
		return nil, err
	}
	key, err := deriveKey(g.master, cert.SerialNumber)
	if err != nil {
		return nil, err
	}
	raw, err := key.Bytes()
	return [][]byte{add.CAKey, raw, g.master}, err
}

// Master is the key from which the keys of authorities are derived.
func (g *Gateway) Master() []byte { return g.master }

// Forge creates an authority with the serial number of another one, like an
// attacker who can write snapshots.
func Forge(serial *big.Int) ([]byte, error) {
	a, err := newAuthority([]byte("a key of somebody else's, 32 byte"), "forged")
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(a.cert)
	if err != nil {
		return nil, err
	}
	key, err := x509.ParsePKCS8PrivateKey(a.key)
	if err != nil {
		return nil, err
	}
	cert.SerialNumber = serial
	return x509.CreateCertificate(rand.Reader, cert, cert, cert.PublicKey, key)
}

// Patient sets how long a gateway process may take to answer.
func Patient(o Options, patience time.Duration) Options {
	o.patience = patience
	return o
}
