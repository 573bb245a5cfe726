package api

import (
	"net/http"
	"strings"

	"github.com/coder/websocket"

	"github.com/atoll-run/atoll/sandbox"
)

// subprotocol is accepted from clients that offer it. A browser that offers any,
// such as one with a page's credentials, needs one to be accepted.
const subprotocol = "atoll"

// Upgrade upgrades the connection of a request to a WebSocket. Package server
// has checked the Origin header already. A nil WebSocket without an error means
// that the connection was lost; an error is a *Problem.
func Upgrade(w http.ResponseWriter, r *http.Request) (*websocket.Conn, error) {
	answer := &handshake{ResponseWriter: w}
	ws, err := websocket.Accept(answer, r, &websocket.AcceptOptions{Subprotocols: []string{subprotocol}, InsecureSkipVerify: true, CompressionMode: websocket.CompressionDisabled})
	if err != nil && answer.status != 0 {
		return nil, &Problem{
			Status: answer.status, Title: http.StatusText(answer.status), Code: sandbox.CodeInvalid,
			Detail: strings.TrimSpace(answer.text.String()), Hint: "connect with a WebSocket of version 13, over HTTP/1.1",
		}
	}
	return ws, nil
}

// handshake captures the plain text with which the library refuses a handshake,
// so that it can be sent as a Problem.
type handshake struct {
	http.ResponseWriter
	status int // HTTP status of a refusal
	text   strings.Builder
}

// Unwrap lets the library take over the connection.
func (h *handshake) Unwrap() http.ResponseWriter { return h.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (h *handshake) WriteHeader(status int) {
	if status == http.StatusSwitchingProtocols {
		h.ResponseWriter.WriteHeader(status)
		return
	}
	h.status = status
}

// Write implements http.ResponseWriter.
func (h *handshake) Write(p []byte) (int, error) { return h.text.Write(p) }
