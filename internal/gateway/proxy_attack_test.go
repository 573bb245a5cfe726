package gateway_test

import (
	"bufio"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// wicked is an operator's proxy that an attacker controls. Its behaviour depends
// on the requested host.
type wicked struct {
	w    *world
	own  *tls.Certificate // of an untrusted authority
	mu   sync.Mutex
	told strings.Builder // data received after the head
}

func (p *wicked) heard(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told.Write(b)
}

// listen notes all that comes.
func (p *wicked) listen(c net.Conn) {
	_ = c.SetReadDeadline(time.Now().Add(2 * time.Second))
	b := make([]byte, 64<<10)
	n, _ := c.Read(b)
	p.heard(b[:n])
}

// impersonate serves TLS with a certificate of its own.
func (p *wicked) impersonate(c net.Conn, cert *tls.Certificate) {
	_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
	t := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{*cert}, MinVersion: tls.VersionTLS12})
	p.listen(t)
	_, _ = io.WriteString(t, "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nimpostor")
}

func (p *wicked) serve(c net.Conn) {
	r, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		return
	}
	host, _, _ := net.SplitHostPort(r.Host)
	switch host {
	case "impostor.test":
		p.impersonate(c, p.own)
	case "another.test":
		p.impersonate(c, p.w.issue("somebody-else.test"))
	case "redirect.test":
		_, _ = fmt.Fprintf(c, "HTTP/1.1 302 Found\r\nLocation: http://%s/\r\nContent-Length: 0\r\n\r\n", p.w.evil)
		p.listen(c)
	case "refused.test":
		text := fmt.Sprint(r.Header)
		_, _ = fmt.Fprintf(c, "HTTP/1.1 407 %s\r\nX-Echo: %s\r\nContent-Length: %d\r\n\r\n%s", r.Header.Get("Proxy-Authorization"), text, len(text), text)
	case "interim.test":
		_, _ = io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n")
		p.listen(c)
	case "endless.test":
		for range 1 << 20 {
			if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nX-Header: "+strings.Repeat("x", 1000)+"\r\n"); err != nil {
				return
			}
		}
	case "more.test": // answers before the request
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nsmuggled")
		p.listen(c)
	case "silent.test":
		p.listen(c)
		p.listen(c)
	case "no-http.test":
		_, _ = io.WriteString(c, "SSH-2.0-x\r\n\r\n")
	}
}

// TestAttackHostileProxy lets the operator's proxy try to read secrets, to
// impersonate servers, and to reveal its password to a sandbox.
func TestAttackHostileProxy(t *testing.T) {
	w, other := newWorld(t), &world{tb: t}
	other.authority()
	p := &wicked{w: w, own: other.issue("impostor.test")}
	w.outside.do(func() { w.each(w.listen(w.good, 3128), p.serve) })
	settings := w.settings()
	settings.Proxy = fmt.Sprintf("http://user:%s@%s:3128", proxyPassword, w.good)
	r := newRigIn(t, settings, w.outside.do)
	hosts := []string{"impostor.test", "another.test", "redirect.test", "refused.test", "interim.test", "endless.test", "more.test", "silent.test", "no-http.test"}
	b := r.sandbox("wicked", withToken(sandbox.Rule{Hosts: hosts}))
	encoded := base64.StdEncoding.EncodeToString([]byte("user:" + proxyPassword))
	for _, host := range hosts {
		out, _ := b.sh("curl -sSi --max-time 4 https://" + host + "/ 2>&1; curl -sSik --max-time 4 https://" + host + "/ 2>&1")
		for _, bad := range []string{"impostor\n", "impostorHTTP", "smuggled", proxyPassword, encoded, url.QueryEscape(proxyPassword), "200 OK", canary} {
			if strings.Contains(out, bad) {
				t.Errorf("%s: the sandbox got %q: %s", host, bad, out)
			}
		}
		if strings.HasSuffix(strings.TrimSpace(out), "impostor") {
			t.Errorf("%s: the sandbox got the proxy's own answer: %s", host, out)
		}
	}
	if hits, violations, _ := w.taken(); len(hits)+len(violations) > 0 {
		t.Errorf("servers were reached: %v, %s", hits, violations)
	}
	p.mu.Lock()
	told := p.told.String()
	p.mu.Unlock()
	if strings.Contains(told, canary) || strings.Contains(told, "GET / ") {
		t.Errorf("the proxy was told %q", told)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if said := fmt.Sprintf("%+v", r.events["wicked"]); strings.Contains(said, proxyPassword) || strings.Contains(said, encoded) {
		t.Errorf("an event has the password: %s", said)
	}
}
