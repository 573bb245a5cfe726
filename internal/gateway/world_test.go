package gateway_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/atoll-run/atoll/internal/gateway"
)

// world contains the servers outside the sandboxes of a test: one that some
// names lead to, one that must never be reached, and a name server that must
// only be asked for names in rules. They have their own network namespace and
// use the usual ports.
type world struct {
	tb         testing.TB
	outside    *outside
	good, evil netip.Addr
	dns        string
	roots      *x509.CertPool
	rootPEM    []byte
	issue      func(host string) *tls.Certificate

	mu         sync.Mutex
	hits       []hit
	violations []string
	asked      []string
	answers    map[string][]netip.Addr // of the name server; used up but for the last
	handlers   map[string]http.HandlerFunc
}

// hit is a request that reached the good server.
type hit struct {
	Proto, Method, Host, URI, Body string
	Header                         http.Header
	TLS                            bool
}

func newWorld(tb testing.TB) *world {
	tb.Helper()
	w := &world{
		tb: tb, good: netip.MustParseAddr("10.77.0.1"), evil: netip.MustParseAddr("10.77.0.2"),
		answers: map[string][]netip.Addr{}, handlers: map[string]http.HandlerFunc{},
	}
	w.outside = newOutside(tb, w.good, w.evil)
	w.authority()
	w.outside.do(w.open)
	return w
}

// open starts the servers.
func (w *world) open() {
	config := &tls.Config{NextProtos: []string{"h2", "http/1.1"}, GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) { return w.issue(h.ServerName), nil }}
	w.web(w.listen(w.good, 80), nil)
	w.web(w.listen(w.good, 8080), nil)
	w.web(w.listen(w.good, 443), config)
	w.web(w.listen(w.good, 8443), config)
	for _, port := range []uint16{22, 53, 80, 443, 853, 8080} {
		w.trap(w.listen(w.evil, port))
	}
	for _, port := range []uint16{22, 80, 443} {
		w.trap(w.listen(netip.MustParseAddr("127.0.0.1"), port))
	}
	w.trapUDP(443)
	w.trapUDP(53)
	w.nameServer()
}

func (w *world) listen(a netip.Addr, port uint16) net.Listener {
	l, err := net.Listen("tcp", netip.AddrPortFrom(a, port).String())
	if err != nil {
		w.tb.Fatal(err)
	}
	w.tb.Cleanup(func() { l.Close() })
	return l
}

// authority makes a certificate authority for the world outside.
func (w *world) authority() {
	key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "the world outside"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		w.tb.Fatal(err)
	}
	root, _ := x509.ParseCertificate(der)
	w.roots = x509.NewCertPool()
	w.roots.AddCert(root)
	w.rootPEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	w.issue = func(host string) *tls.Certificate {
		leaf := &x509.Certificate{
			SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "outside"}, DNSNames: []string{host},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		}
		if host == "wrong.test" {
			leaf.DNSNames = []string{"another.test"}
		}
		if host == "" {
			leaf.DNSNames, leaf.IPAddresses = nil, []net.IP{w.good.AsSlice()}
		}
		der, err := x509.CreateCertificate(rand.Reader, leaf, root, key.Public(), key)
		if err != nil {
			w.tb.Error(err)
		}
		return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	}
}

// web serves the allowed server, which reports its requests.
func (w *world) web(l net.Listener, config *tls.Config) {
	s := &http.Server{Handler: w, TLSConfig: config.Clone(), ErrorLog: log.New(io.Discard, "", 0)}
	if config != nil {
		go func() { _ = s.ServeTLS(l, "", "") }()
	} else {
		go func() { _ = s.Serve(l) }()
	}
	w.tb.Cleanup(func() { s.Close() })
}

func (w *world) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	w.mu.Lock()
	h := w.handlers[host]
	w.mu.Unlock()
	var body []byte
	if h == nil {
		body, _ = io.ReadAll(r.Body)
	}
	got := hit{r.Proto, r.Method, r.Host, r.RequestURI, string(body), r.Header, r.TLS != nil}
	w.mu.Lock()
	w.hits = append(w.hits, got)
	if strings.Contains(r.Host, "evil") || strings.Contains(r.RequestURI, "forbidden") {
		w.violations = append(w.violations, fmt.Sprintf("request %+v", got))
	}
	w.mu.Unlock()
	if h != nil {
		h(rw, r)
		return
	}
	rw.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(rw).Encode(got)
}

// trap is a server that must never be reached.
func (w *world) trap(l net.Listener) {
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			w.violate("a connection to " + l.Addr().String())
			c.Close()
		}
	}()
}

func (w *world) trapUDP(port uint16) {
	c, err := net.ListenPacket("udp", netip.AddrPortFrom(w.evil, port).String())
	if err != nil {
		w.tb.Fatal(err)
	}
	w.tb.Cleanup(func() { c.Close() })
	go func() {
		buf := make([]byte, 2048)
		for {
			n, _, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			w.violate(fmt.Sprintf("a datagram of %d bytes to port %d", n, port))
		}
	}()
}

func (w *world) violate(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.violations = append(w.violations, what)
}

// nameServer gives the test's answers and records the queries.
func (w *world) nameServer() {
	c, err := net.ListenPacket("udp", netip.AddrPortFrom(w.good, 0).String())
	if err != nil {
		w.tb.Fatal(err)
	}
	w.dns = c.LocalAddr().String()
	w.tb.Cleanup(func() { c.Close() })
	go func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			if reply := w.reply(buf[:n]); reply != nil {
				_, _ = c.WriteTo(reply, from)
			}
		}
	}()
}

func (w *world) reply(query []byte) []byte {
	var p dnsmessage.Parser
	head, err := p.Start(query)
	if err != nil {
		return nil
	}
	q, err := p.Question()
	if err != nil {
		return nil
	}
	name := strings.TrimSuffix(q.Name.String(), ".")
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = append(w.asked, name)
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: head.ID, Response: true, RecursionAvailable: true}, Questions: []dnsmessage.Question{q}}
	addrs := w.answers[name]
	switch {
	case len(addrs) == 0:
		m.RCode = dnsmessage.RCodeNameError
	case q.Type == dnsmessage.TypeA:
		if len(addrs) > 1 {
			w.answers[name] = addrs[1:]
		}
		if addrs[0].Is4() {
			m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class}, Body: &dnsmessage.AResource{A: addrs[0].As4()}}}
		}
	case q.Type == dnsmessage.TypeAAAA && addrs[0].Is6():
		m.Answers = []dnsmessage.Resource{{Header: dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class}, Body: &dnsmessage.AAAAResource{AAAA: addrs[0].As16()}}}
	}
	out, _ := m.Pack()
	return out
}

// settings let rules reach the good server and nothing else that is not public.
func (w *world) settings() gateway.Settings {
	return gateway.Settings{
		Nameservers: []string{w.dns}, Private: []netip.Prefix{netip.PrefixFrom(w.good, 32)}, Roots: w.rootPEM,
		Own: []netip.AddrPort{netip.AddrPortFrom(w.good, 8080)},
	}
}

// lead makes names lead to addresses.
func (w *world) lead(a netip.Addr, names ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range names {
		w.answers[n] = []netip.Addr{a}
	}
}

// handle serves a name of the good server.
func (w *world) handle(host string, h http.HandlerFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.handlers[host] = h
}

// taken returns the records since the last call.
func (w *world) taken() (hits []hit, violations, asked []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	hits, violations, asked = w.hits, w.violations, w.asked
	w.hits, w.violations, w.asked = nil, nil, nil
	return hits, violations, asked
}

// each serves the connections of a listener.
func (w *world) each(l net.Listener, serve func(net.Conn)) {
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				serve(c)
			}()
		}
	}()
}

// echo serves a listener that sends back whatever comes.
func (w *world) echo(l net.Listener) {
	w.each(l, func(c net.Conn) { _, _ = io.Copy(c, c) })
}
