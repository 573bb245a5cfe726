// Package wire is the language that the control plane and the gateway process
// speak over a socket between them: frames of JSON, some with descriptors.
// Secrets and private keys travel in it, which is why it is never logged.
package wire

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

// Argv0 is the name under which this program is executed to be a gateway.
// Descriptor 3 is its connection to the control plane, 4 the directory that it
// takes for its root. With the argument Linger it outlives the connection as
// long as it holds a link, and descriptor 5 listens for the next control plane.
const Argv0 = "atoll-gateway"

// Linger is the argument of a gateway that outlives its control plane.
const Linger = "linger"

// MaxFrame bounds one message: the largest profile with room to spare.
const MaxFrame = 64 << 20

// maxFiles is how many descriptors may come with one message.
const maxFiles = 4

// Op is the kind of a message.
type Op string

// The operations. Events go to the control plane and have no answer.
const (
	OpSettings Op = "settings" // how the gateway reaches the world
	OpAdd      Op = "add"      // a sandbox with its link
	OpPolicy   Op = "policy"   // what a sandbox may do from now on
	OpRemove   Op = "remove"   // forget a sandbox
	OpAnswer   Op = "answer"
	OpEvents   Op = "events"
	OpNames    Op = "names" // names that were given addresses, told or asked for
	OpEnded    Op = "ended" // the other end of a link is gone
	// A gateway that outlives its control plane hands over what it holds to
	// the next one: every link, and then that these were all.
	OpHeld    Op = "held"
	OpSettled Op = "settled"
	OpQuit    Op = "quit" // the next gateway takes over
)

// Message is one frame.
type Message struct {
	ID       uint64            `json:"id,omitempty"` // of a request and its answer
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
	// Nameservers are asked for the addresses of names, each HOST:PORT.
	Nameservers []string `json:"nameservers,omitempty"`
	// Hosts are names whose addresses are known, as in /etc/hosts.
	Hosts map[string][]netip.Addr `json:"hosts,omitempty"`
	// Private are ranges that rules may allow although they are private or
	// reserved.
	Private []netip.Prefix `json:"private,omitempty"`
	// HostPorts are the ports of the machine's loopback that rules may open.
	HostPorts []uint16 `json:"hostPorts,omitempty"`
	// Own are the daemon's own ports, which nobody reaches.
	Own []netip.AddrPort `json:"own,omitempty"`
	// Proxy is the URL of a proxy for all that leaves: http or socks5.
	Proxy string `json:"proxy,omitempty"`
	// Roots are certificates, in PEM, that are trusted besides the machine's.
	Roots []byte `json:"roots,omitempty"`
}

// Add describes a sandbox whose link comes with the message.
type Add struct {
	Policy Policy            `json:"policy"`
	Names  map[string]uint16 `json:"names,omitempty"` // addresses given by an earlier gateway
	CACert []byte            `json:"caCert"`          // DER
	CAKey  []byte            `json:"caKey"`           // PKCS #8
}

// Policy says what one sandbox may do.
type Policy struct {
	Profile sandbox.Profile `json:"profile"`
	Secrets []Secret        `json:"secrets,omitempty"`
	// Ceilings are profiles that others set over it: all of them must allow.
	Ceilings []Ceiling `json:"ceilings,omitempty"`
	// ProxyPassword is that of the profile's proxy.
	ProxyPassword []byte `json:"proxyPassword,omitempty"`
}

// Ceiling is what a policy of the machine lets the profile of a sandbox reach.
type Ceiling struct {
	Name    string          `json:"name"`
	Profile sandbox.Profile `json:"profile"`
}

// Secret is a stored secret that the policy makes use of.
type Secret struct {
	Name    string `json:"name"`
	Version int    `json:"version,omitempty"`
	Value   []byte `json:"value"`
	// Placeholder stands for the value inside the sandbox; empty for one that
	// is only injected.
	Placeholder string `json:"placeholder,omitempty"`
	// SwapHosts are those to whom the placeholder is replaced.
	SwapHosts []string `json:"swapHosts,omitempty"`
	Hosts     []string `json:"hosts,omitempty"` // to whom it may be sent at all
	In        []string `json:"in,omitempty"`    // where the placeholder is replaced
}

// Verdict is the decision about a flow or request.
type Verdict string

// The verdicts.
const (
	Allowed Verdict = "allowed"
	Denied  Verdict = "denied"
	Limited Verdict = "limited" // allowed by a rule whose limit is reached
	Failed  Verdict = "failed"  // allowed, but the other side could not be reached
)

// Event is one decision. It never holds a query, a header, a body or a secret.
type Event struct {
	Time    time.Time  `json:"time"`
	Verdict Verdict    `json:"verdict"`
	Kind    string     `json:"kind"`           // dns, tcp, tls, http, udp or icmp
	Rule    string     `json:"rule,omitempty"` // the rule that decided
	Why     string     `json:"why,omitempty"`  // as policy.Reason
	Host    string     `json:"host,omitempty"` // the name that was meant
	Addr    netip.Addr `json:"addr,omitzero"`  // the address that was dialled, or meant
	Port    uint16     `json:"port,omitempty"`
	Method  string     `json:"method,omitempty"`
	Path    string     `json:"path,omitempty"` // without the query
	Status  int        `json:"status,omitempty"`
	Sent    int64      `json:"sent,omitempty"`     // bytes from the sandbox
	Got     int64      `json:"received,omitempty"` // bytes to the sandbox
	Secrets []string   `json:"secrets,omitempty"`  // names and versions of those that were used
	Reason  string     `json:"reason,omitempty"`
	Missed  int        `json:"missed,omitempty"` // events before this one that were not told
}

// Conn carries messages. Send may be called concurrently, Receive not.
type Conn struct {
	c  *net.UnixConn
	mu sync.Mutex
}

// NewConn speaks over a connected stream socket, which belongs to the Conn.
func NewConn(c *net.UnixConn) *Conn { return &Conn{c: c} }

// FileConn speaks over the socket behind f, which it closes.
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

// Close ends the conversation.
func (c *Conn) Close() error { return c.c.Close() }

// Send writes a message with descriptors, which stay the caller's.
func (c *Conn) Send(m *Message, files ...*os.File) error {
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if len(body) > MaxFrame {
		return fmt.Errorf("a message of %d bytes is too long", len(body))
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
	// The descriptors travel with the length, which is never split.
	if _, _, err := c.c.WriteMsgUnix(head, oob, nil); err != nil {
		return err
	}
	_, err = c.c.Write(body)
	return err
}

// duplicates returns descriptors of files without taking these from whoever
// polls them, as Fd would.
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

// Receive reads a message and the descriptors that came with it, which become
// the caller's.
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
