// Package messages is the protocol between the control plane and the gateway
// process: JSON frames over a socket, some with file descriptors. Messages
// contain secrets and private keys, so they are never logged.
package messages

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

// Argv0 is the argv[0] with which this program is executed as a gateway.
// Descriptor 3 is the connection to the control plane, and 4 is the directory
// used as its root. With the argument Linger, the gateway outlives the
// connection as long as it has a link, and descriptor 5 listens for the next
// control plane.
const Argv0 = "atoll-gateway"

// Linger is the argument of a gateway that outlives its control plane.
const Linger = "linger"

// MaxFrame is the maximum size of a message in bytes: the largest profile, with
// room to spare.
const MaxFrame = 64 << 20

// maxFiles is the maximum number of descriptors per message.
const maxFiles = 4

// Op is the kind of a message.
type Op string

// The operations. Events are sent to the control plane and have no response.
const (
	OpSettings Op = "settings" // settings for outgoing connections
	OpAdd      Op = "add"      // add a sandbox with its link
	OpPolicy   Op = "policy"   // replace the policy of a sandbox
	OpRemove   Op = "remove"   // remove a sandbox
	OpAnswer   Op = "answer"
	OpEvents   Op = "events"
	OpNames    Op = "names" // names that were given addresses, as a notification or a response
	OpEnded    Op = "ended" // the other end of a link was closed
	// A lingering gateway hands over to the next control plane: one OpHeld for
	// every link, and a last message that marks the end.
	OpHeld       Op = "held"
	OpHandedOver Op = "settled"
	OpQuit       Op = "quit" // the next gateway process takes over
)

// Message is one frame.
type Message struct {
	ID       uint64            `json:"id,omitempty"` // the same for a request and its response
	Op       Op                `json:"op"`
	Sandbox  sandbox.ID        `json:"sandbox,omitempty"`
	Settings *Settings         `json:"settings,omitempty"`
	Add      *Add              `json:"add,omitempty"`
	Policy   *Policy           `json:"policy,omitempty"`
	Events   []Event           `json:"events,omitempty"`
	Names    map[string]uint16 `json:"names,omitempty"`
	Error    string            `json:"error,omitempty"`
}

// Settings are the same for all sandboxes of a gateway.
type Settings struct {
	// Nameservers are the DNS servers, each as HOST:PORT.
	Nameservers []string `json:"nameservers,omitempty"`
	// Hosts are names with fixed addresses, as in /etc/hosts.
	Hosts map[string][]netip.Addr `json:"hosts,omitempty"`
	// Private are ranges that rules may allow although they are private or
	// reserved.
	Private []netip.Prefix `json:"private,omitempty"`
	// HostPorts are the ports of the machine's loopback that rules may open.
	HostPorts []uint16 `json:"hostPorts,omitempty"`
	// Own are the daemon's own ports, which no sandbox can reach.
	Own []netip.AddrPort `json:"own,omitempty"`
	// Proxy is the URL of a proxy for all traffic: http or socks5.
	Proxy string `json:"proxy,omitempty"`
	// Roots are certificates, in PEM, that are trusted in addition to the
	// machine's.
	Roots []byte `json:"roots,omitempty"`
}

// Add describes a sandbox whose link comes with the message.
type Add struct {
	Policy Policy            `json:"policy"`
	Names  map[string]uint16 `json:"names,omitempty"` // addresses assigned by an earlier gateway
	CACert []byte            `json:"caCert"`          // DER
	CAKey  []byte            `json:"caKey"`           // PKCS #8
	// Ethernet says that each message of the link is an Ethernet frame with a
	// packet whose checksums are computed, as virtual machines send it. Otherwise
	// it is a bare packet.
	Ethernet bool `json:"ethernet,omitempty"`
}

// Policy is the egress policy of one sandbox.
type Policy struct {
	Profile sandbox.Profile `json:"profile"`
	Secrets []Secret        `json:"secrets,omitempty"`
	// EgressLimits are profiles that limit it: all of them must allow a request.
	EgressLimits []EgressLimit `json:"ceilings,omitempty"`
	// ProxyPassword is the password of the profile's proxy.
	ProxyPassword []byte `json:"proxyPassword,omitempty"`
}

// EgressLimit is the network limit set by a policy of the machine.
type EgressLimit struct {
	Name    string          `json:"name"`
	Profile sandbox.Profile `json:"profile"`
}

// Secret is a secret that the policy uses.
type Secret struct {
	Name    string `json:"name"`
	Version int    `json:"version,omitempty"`
	Value   []byte `json:"value"`
	// Placeholder replaces the value inside the sandbox; empty for a secret that
	// is only injected.
	Placeholder string `json:"placeholder,omitempty"`
	// SwapHosts are the hosts for which the placeholder is replaced with the
	// value.
	SwapHosts []string `json:"swapHosts,omitempty"`
	Hosts     []string `json:"hosts,omitempty"` // hosts to which it may be sent at all
	In        []string `json:"in,omitempty"`    // parts of a request in which the placeholder is replaced
}

// Verdict is the decision about a flow or request.
type Verdict string

// The verdicts.
const (
	Allowed Verdict = "allowed"
	Denied  Verdict = "denied"
	Limited Verdict = "limited" // allowed by a rule whose limit is reached
	Failed  Verdict = "failed"  // allowed, but the host could not be reached
)

// Event is one decision. It never contains a query, a header, a body or a
// secret.
type Event struct {
	Time    time.Time  `json:"time"`
	Verdict Verdict    `json:"verdict"`
	Kind    string     `json:"kind"`           // dns, tcp, tls, http, udp or icmp
	Rule    string     `json:"rule,omitempty"` // the rule that decided
	Why     string     `json:"why,omitempty"`  // as policy.Reason
	Host    string     `json:"host,omitempty"` // the requested name
	Addr    netip.Addr `json:"addr,omitzero"`  // the dialled or requested address
	Port    uint16     `json:"port,omitempty"`
	Method  string     `json:"method,omitempty"`
	Path    string     `json:"path,omitempty"` // without the query
	Status  int        `json:"status,omitempty"`
	Sent    int64      `json:"sent,omitempty"`     // bytes from the sandbox
	Got     int64      `json:"received,omitempty"` // bytes to the sandbox
	Secrets []string   `json:"secrets,omitempty"`  // names and versions of the secrets used
	Reason  string     `json:"reason,omitempty"`
	Missed  int        `json:"missed,omitempty"` // number of events dropped before this one
}

// Conn carries messages. Send is safe for concurrent use, Receive is not.
type Conn struct {
	c  *net.UnixConn
	mu sync.Mutex
}

// NewConn returns a Conn over a connected stream socket, and takes ownership of
// c.
func NewConn(c *net.UnixConn) *Conn { return &Conn{c: c} }

// FileConn returns a Conn over the socket behind f, and closes f.
func FileConn(f *os.File) (*Conn, error) {
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, errors.New("not a UNIX socket")
	}
	return NewConn(u), nil
}

// Close closes the connection.
func (c *Conn) Close() error { return c.c.Close() }

// Send writes a message with descriptors. The caller still owns files.
func (c *Conn) Send(m *Message, files ...*os.File) error {
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(body) > MaxFrame {
		return fmt.Errorf("a message of %d bytes is too long", len(body))
	}
	if len(files) > maxFiles {
		return fmt.Errorf("a message with %d files has too many", len(files))
	}
	var oob []byte
	if len(files) > 0 {
		fds, err := duplicates(files)
		defer func() {
			for _, fd := range fds {
				unix.Close(fd)
			}
		}()
		if err != nil {
			return err
		}
		oob = unix.UnixRights(fds...)
	}
	head := binary.BigEndian.AppendUint32(nil, uint32(len(body)))
	c.mu.Lock()
	defer c.mu.Unlock()
	// The descriptors are sent with the length, which is never split.
	if _, _, err := c.c.WriteMsgUnix(head, oob, nil); err != nil {
		return err
	}
	_, err = c.c.Write(body)
	return err
}

// duplicates returns duplicate descriptors of files. Unlike Fd, it does not
// make the files blocking.
func duplicates(files []*os.File) (fds []int, err error) {
	for _, f := range files {
		raw, err := f.SyscallConn()
		if err != nil {
			return fds, err
		}
		var fd int
		var derr error
		if err := raw.Control(func(old uintptr) { fd, derr = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 3) }); err != nil {
			return fds, err
		}
		if derr != nil {
			return fds, derr
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

// Receive reads a message and its descriptors. The caller owns the files.
func (c *Conn) Receive() (_ *Message, files []*os.File, err error) {
	defer func() {
		if err != nil {
			CloseAll(files)
			files = nil
		}
	}()
	head := make([]byte, 4)
	oob := make([]byte, unix.CmsgSpace(4*maxFiles))
	n, on, _, _, err := c.c.ReadMsgUnix(head, oob)
	if err != nil {
		return nil, nil, err
	}
	if n == 0 {
		return nil, nil, io.EOF
	}
	if files, err = rights(oob[:on]); err != nil {
		return nil, files, err
	}
	if _, err := io.ReadFull(c.c, head[n:]); err != nil {
		return nil, files, err
	}
	size := binary.BigEndian.Uint32(head)
	if size > MaxFrame {
		return nil, files, fmt.Errorf("a message of %d bytes is too long", size)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(c.c, body); err != nil {
		return nil, files, err
	}
	m := &Message{}
	return m, files, json.Unmarshal(body, m)
}

func rights(oob []byte) (files []*os.File, err error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for _, m := range msgs {
		fds, err := unix.ParseUnixRights(&m)
		if err != nil {
			return files, err
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}

// CloseAll closes files.
func CloseAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
