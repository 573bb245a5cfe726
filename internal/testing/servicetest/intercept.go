package servicetest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Interceptor is an HTTP proxy that answers in place of its clients' target
// hosts, over TLS with its own certificate authority. It lets a client with
// hard-coded hosts use a fake. Create it with Intercept.
type Interceptor struct {
	URL string // of the proxy
	CA  string // file with the certificate of the authority, in PEM

	proxy  *httptest.Server
	inside *http.Server
	conns  *accepted
	tls    *tls.Config
}

// Intercept starts a proxy for the hosts with these names. "*.x" means all
// names below x. It writes the authority's certificate into dir. A connection
// to any other host is refused. The caller closes it.
func Intercept(dir string, h http.Handler, names ...string) (*Interceptor, error) {
	cert, authority, err := issue(names)
	if err != nil {
		return nil, err
	}
	i := &Interceptor{
		CA: filepath.Join(dir, "ca.pem"), inside: &http.Server{Handler: h, ReadHeaderTimeout: time.Minute},
		conns: &accepted{conns: make(chan net.Conn), done: make(chan struct{})},
		tls:   &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12},
	}
	if err := os.WriteFile(i.CA, authority, 0o600); err != nil {
		return nil, err
	}
	go func() { _ = i.inside.Serve(i.conns) }()
	i.proxy = httptest.NewServer(http.HandlerFunc(i.connect))
	i.URL = i.proxy.URL
	return i, nil
}

// Close ends the proxy and all connections through it.
func (i *Interceptor) Close() {
	_ = i.inside.Close()
	i.proxy.Close()
}

func (i *Interceptor) connect(w http.ResponseWriter, r *http.Request) {
	host, _, err := net.SplitHostPort(r.Host)
	leaf, _ := x509.ParseCertificate(i.tls.Certificates[0].Certificate[0])
	if r.Method != http.MethodConnect || err != nil || leaf.VerifyHostname(host) != nil {
		http.Error(w, "not a host of the fake", http.StatusForbidden)
		return
	}
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	if _, err := conn.Write([]byte("HTTP/1.1 200 OK\r\n\r\n")); err != nil {
		conn.Close()
		return
	}
	i.conns.add(tls.Server(conn, i.tls))
}

// accepted is a listener that returns the connections passed to add.
type accepted struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (a *accepted) add(c net.Conn) {
	select {
	case a.conns <- c:
	case <-a.done:
		c.Close()
	}
}

func (a *accepted) Accept() (net.Conn, error) {
	select {
	case c := <-a.conns:
		return c, nil
	case <-a.done:
		return nil, net.ErrClosed
	}
}

func (a *accepted) Close() error {
	a.once.Do(func() { close(a.done) })
	return nil
}

func (a *accepted) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// issue makes an authority and a certificate of it.
func issue(names []string) (cert tls.Certificate, authority []byte, err error) {
	caKey, err1 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	key, err2 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err := errors.Join(err1, err2); err != nil {
		return cert, nil, err
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "Test authority"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	if err != nil {
		return cert, nil, err
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: names[0]}, NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, DNSNames: names,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, caKey)
	if err != nil {
		return cert, nil, err
	}
	return tls.Certificate{Certificate: [][]byte{der, caDER}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: caDER}), nil
}
