package daemon

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Validity of certificates. A server certificate is created at every start, and
// again after half its validity.
const (
	caLife   = 10 * 365 * 24 * time.Hour
	leafLife = 90 * 24 * time.Hour
)

// localCA is a certificate authority of this daemon, for names that cannot have
// public certificates. Its key stays in the state directory.
type localCA struct {
	cert *x509.Certificate
	key  crypto.Signer
	file string // its certificate, for clients
}

// openCA reads the authority in dir, and creates it if it does not exist.
func openCA(dir string) (*localCA, error) {
	ca := &localCA{file: filepath.Join(dir, "ca.pem")}
	keyFile := filepath.Join(dir, "ca.key")
	pair, err := tls.LoadX509KeyPair(ca.file, keyFile)
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeCA(ca.file, keyFile); err != nil {
			return nil, err
		}
		pair, err = tls.LoadX509KeyPair(ca.file, keyFile)
	}
	if err != nil {
		return nil, err
	}
	ca.cert, ca.key = pair.Leaf, pair.PrivateKey.(crypto.Signer)
	return ca, nil
}

func makeCA(certFile, keyFile string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "Atoll on this machine"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(caLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	// Write the key first, so that a certificate always has one.
	if err := os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), 0o600); err != nil {
		return err
	}
	return os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), 0o644)
}

func serial() *big.Int {
	n, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)) // never fails
	return n
}

// config returns the TLS configuration of a server with these names and the
// loopback addresses.
func (ca *localCA) config(names ...string) *tls.Config {
	var mu sync.Mutex
	var leaf *tls.Certificate
	return &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (_ *tls.Certificate, err error) {
		mu.Lock()
		defer mu.Unlock()
		if leaf == nil || time.Until(leaf.Leaf.NotAfter) < leafLife/2 {
			leaf, err = ca.issue(names)
		}
		return leaf, err
	}}
}

func (ca *localCA) issue(names []string) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: names[0]}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(leafLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: append(names, "localhost"), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key.Public(), ca.key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(raw)
	return &tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key, Leaf: cert}, err
}
