package wire

import (
	"encoding/binary"
	"path"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// Defaults are the settings of commands that do not set their own.
type Defaults struct {
	Env      map[string]string
	User     string
	Workdir  string
	Hostname string // empty: unchanged
}

// Encode appends the defaults.
func (m *Defaults) Encode(e *Encoder) {
	putEnv(e, m.Env)
	e.String(m.User)
	e.String(m.Workdir)
	e.String(m.Hostname)
}

// Decode takes what Encode appended.
func (m *Defaults) Decode(d *Decoder) {
	m.Env = takeEnv(d)
	m.User, m.Workdir, m.Hostname = d.String(), d.String(), d.String()
}

func putEnv(e *Encoder, env map[string]string) {
	e.Uint(uint64(len(env)))
	for k, v := range env {
		e.String(k)
		e.String(v)
	}
}

func takeEnv(d *Decoder) map[string]string {
	n := d.Uint()
	if n > uint64(len(d.B)) {
		d.fail()
		return nil
	}
	env := make(map[string]string, min(n, 1024))
	for range n {
		k := d.String()
		env[k] = d.String()
	}
	return env
}

// PutCommand appends a command.
func PutCommand(e *Encoder, c *sandbox.Command) {
	e.Strings(c.Args)
	e.String(c.Shell)
	putEnv(e, c.Env)
	e.String(c.Dir)
	e.String(c.User)
	e.Bool(c.TTY != nil)
	if c.TTY != nil {
		PutSize(e, *c.TTY)
	}
	e.Bool(c.Stdin)
	e.Int(int64(c.Timeout))
	e.Bool(c.Background)
}

// TakeCommand takes a command.
func TakeCommand(d *Decoder) *sandbox.Command {
	c := &sandbox.Command{Args: d.Strings(), Shell: d.String(), Env: takeEnv(d), Dir: d.String(), User: d.String()}
	if d.Bool() {
		size := TakeSize(d)
		c.TTY = &size
	}
	c.Stdin, c.Timeout, c.Background = d.Bool(), time.Duration(d.Int()), d.Bool()
	return c
}

// PutSize appends a window size.
func PutSize(e *Encoder, s sandbox.WindowSize) {
	e.Uint(uint64(s.Cols))
	e.Uint(uint64(s.Rows))
}

// TakeSize takes a window size.
func TakeSize(d *Decoder) sandbox.WindowSize {
	return sandbox.WindowSize{Cols: uint16(d.Uint()), Rows: uint16(d.Uint())}
}

// The first byte of a message about a command.
const (
	MsgStarted = 1 + iota // ProcessInfo follows
	MsgExit               // Exit follows
	MsgInfo               // FileInfo follows
	MsgReady              // the operation has started
)

// PutExit appends an exit status.
func PutExit(e *Encoder, x sandbox.Exit) {
	e.Uint(uint64(x.Code))
	e.Uint(uint64(x.Signal))
	e.String(string(x.Reason))
	e.String(x.Detail)
}

// TakeExit takes an exit status. It rejects values that no kernel reports.
func TakeExit(d *Decoder) sandbox.Exit {
	x := sandbox.Exit{Code: int(d.Uint() & 0xff), Signal: int(d.Uint() & 0x7f)}
	switch r := sandbox.Reason(d.String()); r {
	case sandbox.ReasonSignaled, sandbox.ReasonTimeout:
		x.Reason = r
	default:
		x.Reason = sandbox.ReasonExited
	}
	x.Detail = Printable(d.String())
	return x
}

// PutProcess appends the description of a command.
func PutProcess(e *Encoder, p *sandbox.ProcessInfo) {
	e.String(p.ID)
	e.Uint(uint64(p.PID))
	e.Strings(p.Args)
	e.Time(p.Started)
	e.Bool(p.Background)
	e.Bool(p.TTY)
	e.Bool(p.Running)
	e.Bool(p.Exit != nil)
	if p.Exit != nil {
		PutExit(e, *p.Exit)
	}
}

// TakeProcess takes the description of a command.
func TakeProcess(d *Decoder) sandbox.ProcessInfo {
	p := sandbox.ProcessInfo{
		ID: Printable(d.String()), PID: int(d.Uint() & 0x7fffffff), Args: d.Strings(), Started: d.Time(),
		Background: d.Bool(), TTY: d.Bool(), Running: d.Bool(),
	}
	if d.Bool() {
		x := TakeExit(d)
		p.Exit = &x
	}
	return p
}

// fileTypes are the numbers of file types on the wire.
var fileTypes = [...]sandbox.FileType{
	sandbox.TypeFile, sandbox.TypeDir, sandbox.TypeSymlink, sandbox.TypeFIFO, sandbox.TypeSocket, sandbox.TypeDevice,
}

// PutFile appends the description of a file.
func PutFile(e *Encoder, f *sandbox.FileInfo) {
	e.String(f.Path)
	for i, t := range fileTypes {
		if t == f.Type {
			e.Uint(uint64(i))
		}
	}
	e.Int(f.Size)
	e.Uint(uint64(f.Mode))
	e.Uint(uint64(f.UID))
	e.Uint(uint64(f.GID))
	e.Time(f.ModTime)
	e.String(f.Target)
	e.Uint(f.Nlink)
	e.Uint(f.Identity)
}

// TakeFile takes the description of a file.
func TakeFile(d *Decoder) sandbox.FileInfo {
	f := sandbox.FileInfo{Path: d.String()}
	if t := d.Uint(); t < uint64(len(fileTypes)) {
		f.Type = fileTypes[t]
	} else {
		d.fail()
	}
	f.Size = max(0, d.Int())
	f.Mode = uint32(d.Uint()) & 0o7777
	f.UID, f.GID = uint32(d.Uint()), uint32(d.Uint())
	f.ModTime = d.Time()
	f.Target = d.String()
	f.Nlink, f.Identity = d.Uint(), d.Uint()
	return f
}

// PutDetails appends all details of a file.
func PutDetails(e *Encoder, f *sandbox.FileDetails) {
	PutFile(e, &f.FileInfo)
	e.Int(f.StatSize)
	putEnv(e, f.Attributes)
}

// TakeDetails takes all details of a file.
func TakeDetails(d *Decoder) sandbox.FileDetails {
	return sandbox.FileDetails{FileInfo: TakeFile(d), StatSize: max(0, d.Int()), Attributes: takeEnv(d)}
}

// Overwrite is an extension of a write request: write into the existing file
// instead of replacing it.
type Overwrite struct {
	Namespace  string
	Attributes map[string]string
}

// Encode appends it.
func (m *Overwrite) Encode(e *Encoder) {
	e.String(m.Namespace)
	putEnv(e, m.Attributes)
}

// TakeOverwrite takes an Overwrite, or returns nil if there is none.
func TakeOverwrite(d *Decoder) *Overwrite {
	if len(d.B) == 0 {
		return nil
	}
	return &Overwrite{Namespace: d.String(), Attributes: takeEnv(d)}
}

// LocalPath reports whether p is a clean relative path without a leading "..".
// "." is valid.
func LocalPath(p string) bool {
	return p != "" && p[0] != '/' && path.Clean(p) == p && p != ".." && !strings.HasPrefix(p, "../") && strings.IndexByte(p, 0) < 0
}

var fileOps = [...]sandbox.FileOp{sandbox.OpCreate, sandbox.OpWrite, sandbox.OpRemove, sandbox.OpChmod, sandbox.OpOverflow}

// PutEvent appends a change of a file.
func PutEvent(e *Encoder, ev sandbox.FileEvent) {
	for i, op := range fileOps {
		if op == ev.Op {
			e.Uint(uint64(i))
		}
	}
	e.String(ev.Path)
	e.Bool(ev.Dir)
}

// TakeEvent takes a change of a file.
func TakeEvent(d *Decoder) sandbox.FileEvent {
	var ev sandbox.FileEvent
	if op := d.Uint(); op < uint64(len(fileOps)) {
		ev.Op = fileOps[op]
	} else {
		d.fail()
	}
	ev.Path, ev.Dir = d.String(), d.Bool()
	if !LocalPath(ev.Path) {
		d.fail()
	}
	return ev
}

// PutLogHeader writes the header of n bytes of a log: their stream and the
// number of bytes lost before them.
func PutLogHeader(b []byte, stream byte, dropped int64, n int) {
	binary.LittleEndian.PutUint32(b, uint32(n))
	binary.LittleEndian.PutUint32(b[4:], uint32(stream))
	binary.LittleEndian.PutUint64(b[8:], uint64(dropped))
}

// ParseLogHeader parses a header of PutLogHeader and validates its numbers.
func ParseLogHeader(b []byte) (stream int, dropped int64, n int, err error) {
	n = int(binary.LittleEndian.Uint32(b))
	stream = int(binary.LittleEndian.Uint32(b[4:]))
	dropped = int64(binary.LittleEndian.Uint64(b[8:]))
	if n > MaxData || stream < 1 || stream > 2 || dropped < 0 {
		return 0, 0, 0, violation("malformed log")
	}
	return stream, dropped, n, nil
}
