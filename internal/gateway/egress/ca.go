package egress

import (
	"container/list"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net"
	"sync"
	"time"
)

const (
	maxLeaves  = 256
	leafLife   = 24 * time.Hour
	clockSlack = time.Hour // maximum error of a sandbox's clock
)

// authority issues certificates that are trusted only by one sandbox and its
// copies.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	leaf *ecdsa.PrivateKey // shared by all leaf certificates, and never leaves this process

	mu     sync.Mutex
	leaves map[string]*list.Element
	recent *list.List // of *leaf, least recently used last
}

type leaf struct {
	name string
	cert *tls.Certificate
}

func newAuthority(certDER, keyDER []byte) (*authority, error) {
	cert, err := x509.ParseCertificate(certDER)
	if err != nil {
		return nil, err
	}
	key, err := x509.ParsePKCS8PrivateKey(keyDER)
	if err != nil {
		return nil, errors.New("the authority's key is not PKCS #8") // do not quote the error, which may contain the key
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, errors.New("the authority's key cannot sign")
	}
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return &authority{cert: cert, key: signer, leaf: own, leaves: map[string]*list.Element{}, recent: list.New()}, nil
}

// certificate returns a certificate for a host name or address.
func (a *authority) certificate(host string) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e, ok := a.leaves[host]; ok {
		l := e.Value.(*leaf)
		if time.Until(l.cert.Leaf.NotAfter) > leafLife/2 {
			a.recent.MoveToFront(e)
			return l.cert, nil
		}
		a.recent.Remove(e)
		delete(a.leaves, host)
	}
	cert, err := a.issue(host)
	if err != nil {
		return nil, err
	}
	a.leaves[host] = a.recent.PushFront(&leaf{host, cert})
	if a.recent.Len() > maxLeaves {
		oldest := a.recent.Remove(a.recent.Back()).(*leaf)
		delete(a.leaves, oldest.name)
	}
	return cert, nil
}

func (a *authority) issue(host string) (*tls.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	t := &x509.Certificate{
		SerialNumber: serial,
		NotBefore:    now.Add(-clockSlack),
		NotAfter:     now.Add(leafLife + clockSlack),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if ip := net.ParseIP(host); ip != nil {
		t.IPAddresses = []net.IP{ip}
	} else {
		t.DNSNames = []string{host}
		if len(host) <= 64 { // the maximum length of a common name
			t.Subject = pkix.Name{CommonName: host}
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, a.leaf.Public(), a.key)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der, a.cert.Raw}, PrivateKey: a.leaf, Leaf: parsed}, nil
}
