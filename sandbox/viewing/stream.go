// Package viewing describes what people see of a sandbox: streams, recordings
// and desktops.
package viewing

import (
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// NewStream asks for a stream of a sandbox.
type NewStream struct {
	// Kind is terminal, desktop or port. A desktop is a VNC server, on port 5900 if
	// Port is 0; that one is started, with its display, if it does not run.
	Kind string `json:"kind" enum:"terminal,desktop,port" doc:"terminal: a terminal that viewers share; desktop: a VNC server; port: the bytes of a port"`
	// Mode is view or control; empty: view. A viewer of the mode view speaks RFB, and
	// its keyboard, pointer and clipboard are dropped.
	Mode string `json:"mode,omitempty" enum:"view,control" doc:"view is the default; in it, the daemon drops keyboard, pointer and clipboard of RFB"`
	Port uint16 `json:"port,omitempty" doc:"port inside the sandbox; 5900 for a desktop if it is left out, where the desktop is started if it does not run"`
	// Process is the background command whose terminal is shared; empty: a login
	// shell, which is started if it does not run.
	Process string             `json:"process,omitempty" maxLength:"64" doc:"id of a background command on a terminal; a login shell in the workspace if it is left out"`
	Size    sandbox.WindowSize `json:"size,omitzero" doc:"of the terminal of a new login shell"`
	// TTL is how many seconds the token may open sockets; 0: 120.
	TTL int64 `json:"ttl,omitempty" minimum:"0" maximum:"86400" doc:"seconds during which the token opens sockets; 120 if it is left out"`
	// Link asks for a code for a link that a person opens. A desktop that cannot be
	// started is then an error.
	Link bool `json:"link,omitempty" doc:"also return a one-time code, for a link that a browser opens without a key"`
}

// Stream is a permission to view a sandbox, and its present viewers.
type Stream struct {
	ID         string     `json:"id"`
	Sandbox    sandbox.ID `json:"sandbox"`
	Kind       string     `json:"kind"`
	Mode       string     `json:"mode"`
	Port       uint16     `json:"port,omitempty"`
	Process    string     `json:"process,omitempty" doc:"of a terminal"`
	LeaseEpoch int64      `json:"leaseEpoch" doc:"of the session; 0 if the stream was opened for a sandbox"`
	Expires    time.Time  `json:"expiresAt" doc:"until then its token opens sockets"`
	Viewers    int        `json:"viewers" doc:"number of open sockets"`
}

// TerminalMessage is a text message of the WebSocket of a terminal. Binary
// messages are output, and input of viewers with control.
type TerminalMessage struct {
	// Type is join or size from a viewer. To a viewer it is screen or resume (how
	// the output goes on), size, input (how much has arrived) or exit.
	Type     string              `json:"type" enum:"join,size,screen,resume,input,exit"`
	Size     *sandbox.WindowSize `json:"size,omitempty"`
	Client   string              `json:"client,omitempty" doc:"chosen by a viewer that may reconnect: its earlier connection ends, and its input is counted"`
	Terminal string              `json:"terminal,omitempty" doc:"which counting the offset belongs to"`
	Offset   int64               `json:"offset,omitempty" doc:"in the output, of what follows; in a join, of what is asked for"`
	Input    int64               `json:"input,omitempty" doc:"bytes of the client's input that have arrived"`
	Exit     *sandbox.Exit       `json:"exit,omitempty"`
}

// StreamAccess is a new stream with its token, which is not shown again.
type StreamAccess struct {
	Stream
	URL       string `json:"url" doc:"path of the WebSocket, below the address of the API"`
	Token     string `json:"token" doc:"for the first message or the subprotocol; never for a URL"`
	Transport string `json:"transport" enum:"terminal-ws,vnc-ws,tcp-ws"`
	Client    string `json:"client" enum:"xterm,novnc,bytes" doc:"what can show it"`
	// Code is exchanged once for the token, by a page that has no key.
	Code        string    `json:"code,omitempty" doc:"one-time code that redeemStream exchanges for the token; only with link"`
	CodeExpires time.Time `json:"codeExpiresAt,omitzero" doc:"until then the code can be exchanged"`
}

// StreamRedemption is the proof of a viewer who opened the link of a stream. Either part
// is enough.
type StreamRedemption struct {
	Code  string `json:"code,omitempty" maxLength:"64" doc:"one-time code of the link"`
	Token string `json:"token,omitempty" maxLength:"2048" doc:"token of the stream that is still valid, also of an earlier sandbox of its session"`
}

// Fragment returns the fragment of the console's address that shows a stream.
// It holds the code, which works once.
func (a *StreamAccess) Fragment() string { return "view=" + a.ID + "." + a.Code }

// StreamSession is the session whose sandbox a stream is for. It is empty if
// the stream is for the sandbox itself.
type StreamSession struct {
	Ref   string // its id
	Epoch int64  // of the sandbox
}
