package bridgeapi

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/server/portproxy"
	"github.com/atoll-run/atoll/sandbox"
)

const (
	// labelTunnel plus a port is the label of a sandbox that has a tunnel to that
	// port. Its value is a tunnel as JSON.
	labelTunnel = "bridge.tunnel."
	maxTunnels  = 32 // of a sandbox
	minPort     = 1024
	controlPort = 3000 // at Cloudflare, the bridge itself uses it
)

// tunnel is a secret address of a port of a sandbox. Knowing the address gives
// access to the port.
type tunnel struct {
	Made  int64  `json:"t"` // milliseconds
	Nonce string `json:"n"`
	Name  string `json:"a,omitempty"`
}

// tunnelInfo is the JSON of a tunnel.
type tunnelInfo struct {
	ID      string `json:"id"`
	Port    uint16 `json:"port"`
	URL     string `json:"url"`
	Host    string `json:"hostname"`
	Name    string `json:"name,omitempty"`
	Created string `json:"createdAt"`
}

// tunnels serves the ports that have tunnels.
type tunnels struct {
	secret   []byte
	ports    Ports
	entrance Entrance
	proxy    *portproxy.Proxy
}

// dialer lets the proxy dial for requests that come through a tunnel.
type dialer struct{ Ports }

// EnterPort is not used: a tunnel needs no token.
func (dialer) EnterPort(ctx context.Context, _, _ string, _ uint16) (context.Context, sandbox.ID, error) {
	return ctx, "", &sandbox.Error{Code: sandbox.CodeUnauthorized, Message: "tunnels accept no port tokens"}
}

// password is the secret part of the address of a tunnel. It changes if the
// tunnel is deleted and created again.
func (t *tunnels) password(id sandbox.ID, port uint16, nonce string) string {
	mac := hmac.New(sha256.New, t.secret)
	_, _ = mac.Write([]byte(string(id) + "\x00" + strconv.Itoa(int(port)) + "\x00" + nonce))
	return spelling.EncodeToString(mac.Sum(nil)[:16])
}

// tunnelTo returns the tunnel of a sandbox to a port.
func tunnelTo(s *sandbox.Sandbox, port uint16) (t tunnel, ok bool) {
	return t, json.Unmarshal([]byte(s.Labels[tunnelLabel(port)]), &t) == nil
}

func tunnelLabel(port uint16) string { return labelTunnel + strconv.Itoa(int(port)) }

var tunnelHost = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([0-9]{1,5})-([a-z0-9-]{1,40})-([a-z2-7]{26})\.`)
})

// serve answers a request that came through a tunnel, and reports whether it did.
func (t *tunnels) serve(h *Handler, w http.ResponseWriter, r *http.Request) bool {
	m := tunnelHost().FindStringSubmatch(strings.ToLower(r.Host))
	if m == nil {
		return false
	}
	absent := &problem{http.StatusNotFound, "there is no tunnel with this address", codeTunnel}
	number, err := strconv.ParseUint(m[1], 10, 16)
	if err != nil {
		h.fail(w, r, absent, codeTunnel)
		return true
	}
	port, id := uint16(number), sandbox.ID(m[2])
	ctx, s, err := t.entrance.Enter(r.Context(), id, "")
	if err != nil && sandbox.CodeOf(err) == sandbox.CodeUnavailable {
		h.fail(w, r, err, codeTunnel)
		return true
	}
	made, ok := tunnelTo(&s, port)
	if err != nil || !ok || s.State == sandbox.Gone || !hmac.Equal([]byte(m[3]), []byte(t.password(id, port, made.Nonce))) {
		h.fail(w, r, absent, codeTunnel)
		return true
	}
	r = r.Clone(ctx)
	for _, name := range []string{"Authorization", "X-Api-Key"} { // a key must not reach the program inside
		if slices.ContainsFunc(r.Header.Values(name), portproxy.IsKey) {
			r.Header.Del(name)
		}
	}
	t.proxy.Show(w, r, portproxy.Port{Sandbox: id, Number: port, Bearer: m[3]})
	return true
}

// tunnelPort returns the port that a path ends with.
func tunnelPort(rest string) (uint16, error) {
	n, err := strconv.ParseUint(rest, 10, 16)
	if err != nil || n < minPort || n == controlPort || rest != strconv.FormatUint(n, 10) {
		return 0, invalid("Invalid port")
	}
	return uint16(n), nil
}

var dnsLabel = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
})

// createTunnel returns the address of a port, and creates one if there is none.
func (h *Handler) createTunnel(w http.ResponseWriter, r *http.Request, c *call) error {
	port, err := tunnelPort(c.rest)
	if err != nil {
		return err
	}
	var req struct {
		Name *string `json:"name"`
	}
	if err := read(r, &req); err != nil {
		return err
	}
	name := ""
	if req.Name != nil {
		if name = *req.Name; !dnsLabel().MatchString(name) {
			return invalid("name must be a DNS label of 1 to 63 lower-case letters, digits and hyphens")
		}
	}
	host, err := tunnelDomain(r.Host)
	if err != nil {
		return err
	}
	_, release, err := h.openLocked(r.Context(), c)
	if err != nil {
		return err
	}
	defer release()
	id, made, err := h.openTunnel(r.Context(), c, port, name)
	if err != nil {
		return err
	}
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	label := strconv.Itoa(int(port)) + "-" + string(id) + "-" + h.tunnels.password(id, port, made.Nonce)
	writeJSON(w, http.StatusOK, tunnelInfo{
		ID: made.Nonce, Port: port, URL: scheme + "://" + label + "." + host, Host: label + "." + hostname(host), Name: made.Name,
		Created: time.UnixMilli(made.Made).UTC().Format("2006-01-02T15:04:05.000Z"),
	})
	return nil
}

func hostname(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return host
}

// tunnelDomain returns the domain of tunnels, with the port of this server, for a
// client that has reached it at host.
func tunnelDomain(host string) (string, error) {
	name, port, err := net.SplitHostPort(host)
	if err != nil {
		name, port = strings.Trim(host, "[]"), ""
	}
	if ip := net.ParseIP(name); ip != nil {
		if !ip.IsLoopback() {
			return "", &problem{http.StatusBadGateway, "an address with a number has no names for tunnels; reach the server by its name", codeTunnel}
		}
		name = "localhost"
	}
	if port != "" {
		name = net.JoinHostPort(name, port)
	}
	return name, nil
}

// openTunnel returns the tunnel to a port of a sandbox that runs.
func (h *Handler) openTunnel(ctx context.Context, c *call, port uint16, name string) (sandbox.ID, tunnel, error) {
	s, err := h.services.Sandboxes.Inspect(ctx, nameOf(c.id))
	if err != nil {
		return "", tunnel{}, err
	}
	if made, ok := tunnelTo(&s.Sandbox, port); ok && (name == "" || name == made.Name) {
		return s.ID, made, nil
	}
	count := 0
	for label := range s.Labels {
		if strings.HasPrefix(label, labelTunnel) {
			count++
		}
	}
	if count >= maxTunnels {
		return "", tunnel{}, &problem{http.StatusBadGateway, "the sandbox has as many tunnels as it may have; delete one", codeTunnel}
	}
	// The address gives access without a token, so the caller needs the permission
	// to share ports.
	if _, _, err := h.tunnels.ports.SharePorts(ctx, string(s.ID), []uint16{port}, 0); err != nil {
		return "", tunnel{}, err
	}
	made := tunnel{Made: time.Now().UnixMilli(), Nonce: strings.ToLower(rand.Text()), Name: name}
	text, err := json.Marshal(made)
	if err != nil {
		return "", tunnel{}, err
	}
	value := string(text)
	_, err = h.services.Sandboxes.Update(ctx, string(s.ID), sandbox.Change{Labels: map[string]*string{tunnelLabel(port): &value}})
	return s.ID, made, err
}

// deleteTunnel removes the address of a port, if it has one. Open connections
// stay.
func (h *Handler) deleteTunnel(w http.ResponseWriter, r *http.Request, c *call) error {
	port, err := tunnelPort(c.rest)
	if err != nil {
		return err
	}
	release, err := h.locks.Take(r.Context(), c.key())
	if err != nil {
		return err
	}
	defer release()
	s, err := h.services.Sandboxes.Inspect(r.Context(), nameOf(c.id))
	if _, ok := s.Labels[tunnelLabel(port)]; err == nil && ok && s.State != sandbox.Gone {
		_, err = h.services.Sandboxes.Update(r.Context(), string(s.ID), sandbox.Change{Labels: map[string]*string{tunnelLabel(port): nil}})
	}
	switch sandbox.CodeOf(err) {
	case "", sandbox.CodeNotFound, sandbox.CodeGone:
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	return err
}
