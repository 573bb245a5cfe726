package e2bapi

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/internal/server/portproxy"
	"github.com/atoll-run/atoll/sandbox"
)

// headerTraffic contains the token for the ports of a sandbox that are not public.
const headerTraffic = "E2b-Traffic-Access-Token"

// portAPI passes requests to ports of sandboxes.
type portAPI struct {
	*guest
	dialer      Ports
	interpreter Interpreter
	proxy       *portproxy.Proxy
}

// dialer connects for requests that enter has checked.
type dialer struct{ *portAPI }

// EnterPort refuses: this API authenticates requests for ports itself.
func (dialer) EnterPort(ctx context.Context, _, _ string, _ uint16) (context.Context, sandbox.ID, error) {
	return ctx, "", unauthorized("not this way")
}

// DialPort connects to a port. On that of the code interpreter, a server is
// started if none listens.
func (d dialer) DialPort(ctx context.Context, ref string, port uint16) (net.Conn, error) {
	if port == interpreterPort {
		return d.interpret(ctx, sandbox.ID(ref))
	}
	return d.dialer.DialPort(ctx, ref, port)
}

func newPortAPI(inside *guest, ports Ports, code Interpreter) *portAPI {
	h := &portAPI{guest: inside, dialer: ports, interpreter: code}
	h.proxy = portproxy.New(dialer{h}, portproxy.Options{Failed: h.portFailed, Logger: h.opts.Logger})
	return h
}

// bearer returns the key whose token a request for a port carries, if any.
func (h *portAPI) bearer(r *http.Request, id sandbox.ID, number uint16) string {
	if number == interpreterPort {
		if keyID, ok := h.tokens.keyOf(forEnvd, string(id), r.Header.Get(headerToken)); ok {
			return keyID
		}
	}
	if keyID, ok := h.tokens.keyOf(forTraffic, string(id), r.Header.Get(headerTraffic)); ok {
		return keyID
	}
	return ""
}

type portKey struct{}

// port is the port that a request is for.
type port struct {
	id     sandbox.ID
	number uint16
}

// portRoute is that of the ports of a sandbox. Without a token, its ports are
// open, unless the sandbox is private.
var portRoute = ops.Route{Name: "a port of a sandbox", Open: true, Ops: []ops.Op{ops.SandboxFind, ops.PortOpen}}

// show forwards a request to the program that listens inside. Anyone who knows the id of
// a sandbox can reach its ports, as at E2B, unless its creator requires a
// token.
func (h *portAPI) show(w http.ResponseWriter, r *http.Request, s *sandbox.Sandbox, number uint16, keyID string) {
	bearer := ""
	if s.Labels[labelPrivate] != "" {
		bearer = r.Header.Get(headerTraffic)
		if _, ok := h.tokens.keyOf(forTraffic, string(s.ID), bearer); !ok {
			h.fail(w, r, &sandbox.Error{Code: sandbox.CodeDenied, Message: "the ports of this sandbox require its traffic access token"})
			return
		}
	}
	if keyID != "" {
		if err := h.allow(r.Context(), s.ID, portRoute.Ops); err != nil {
			h.fail(w, r, err)
			return
		}
	}
	if number == interpreterPort {
		if err := h.mayInterpret(r, s.ID); err != nil {
			h.fail(w, r, err)
			return
		}
	}
	r = r.Clone(context.WithValue(r.Context(), portKey{}, port{s.ID, number}))
	byName := r.Header.Get(headerID) == ""
	for _, name := range []string{headerID, headerPort, headerToken, headerTraffic, "X-Api-Key"} {
		r.Header.Del(name)
	}
	// The control plane accepts keys in this header, too. Other values are for the
	// program.
	if kept := slices.DeleteFunc(r.Header.Values("Authorization"), portproxy.IsKey); len(kept) > 0 {
		r.Header["Authorization"] = kept
	} else {
		r.Header.Del("Authorization")
	}
	switch mask := s.Labels[labelHost]; {
	case mask != "":
		r.Host = strings.ReplaceAll(mask, "${PORT}", strconv.Itoa(int(number)))
	case !byName:
		r.Host = "localhost:" + strconv.Itoa(int(number))
	}
	secured := slices.Contains(securedPorts(s), int(number))
	h.proxy.Show(w, r, portproxy.Port{Sandbox: s.ID, Number: number, Bearer: bearer, TLS: secured})
}

// portFailed answers a request if the program inside did not.
func (h *portAPI) portFailed(w http.ResponseWriter, r *http.Request, err error) {
	p, _ := r.Context().Value(portKey{}).(port)
	_, interpreting := errors.AsType[*StartError](err)
	switch code := sandbox.CodeOf(err); {
	case r.Context().Err() != nil: // the client is gone, or its access has ended
		panic(http.ErrAbortHandler)
	case code == sandbox.CodeGone || code == sandbox.CodeNotFound || code == sandbox.CodeConflict: // it ended or was paused meanwhile
		h.notRunning(w, p.id)
	case interpreting || code == sandbox.CodeExhausted:
		h.fail(w, r, err)
	default:
		writeJSON(w, http.StatusBadGateway, absent{
			SandboxID: publicID(p.id), Message: "The sandbox is running but port is not open", Port: p.number, Code: http.StatusBadGateway,
		})
	}
}
