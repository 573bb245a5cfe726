package hub

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"runtime"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/machine"
	"github.com/atoll-run/atoll/internal/machine/update"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// Program is the program of machines.
type Program struct {
	Version string
	// Open opens the file of the program for the system of this daemon.
	Open func() (io.ReadCloser, error)
}

const (
	// maxDownloads is how many programs are sent at a time, one to each machine. More
	// machines wait.
	maxDownloads = 16
	// downloadTime limits how long a machine may take for a program.
	downloadTime = time.Hour
)

// offers has the offer of the program of this daemon, once it was needed.
type offers struct {
	begin sync.Once
	mu    sync.Mutex
	text  []byte          // nil: it is not known yet
	sends map[string]bool // machines that get the program now
}

// take reports whether a machine may get the program now. Then done has to be
// called.
func (o *offers) take(id string) (done func(), ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.sends[id] {
		return nil, false
	}
	if o.sends == nil {
		o.sends = map[string]bool{}
	}
	o.sends[id] = true
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.sends, id)
	}, true
}

// offer offers the program of this daemon to a machine that wants it. A machine
// asks with every beat, so the first ones may be left without an answer.
func (h *Hub) offer(to machine.Subjects, g machine.Greeting) {
	p := h.cfg.Program
	if p == nil || !g.Consents.Has(operator.ConsentUpdates) || g.OS != runtime.GOOS || g.Arch != runtime.GOARCH || !update.Newer(p.Version, g.Version) {
		return
	}
	h.offers.begin.Do(func() {
		go func() {
			if err := h.sign(); err != nil {
				h.cfg.Logger.Error("signing the program for machines", "error", err)
			}
		}()
	})
	h.offers.mu.Lock()
	text := h.offers.text
	h.offers.mu.Unlock()
	if text != nil {
		_ = h.conn.Publish(to.Down()+machine.Offer, text)
	}
}

func (h *Hub) sign() error {
	f, err := h.cfg.Program.Open()
	if err != nil {
		return err
	}
	defer f.Close()
	o, sum := update.Offer{Version: h.cfg.Program.Version, OS: runtime.GOOS, Arch: runtime.GOARCH}, sha256.New()
	if o.Size, err = io.Copy(sum, f); err != nil {
		return err
	}
	o.SHA256 = hex.EncodeToString(sum.Sum(nil))
	signed, err := update.Sign(h.issuer, o)
	if err != nil {
		return err
	}
	signed.Daemon = h.self
	text, err := json.Marshal(signed)
	if err != nil {
		return err
	}
	h.offers.mu.Lock()
	defer h.offers.mu.Unlock()
	h.offers.text = text
	return nil
}

// accept returns what takes the streams of machines. Each gets the program of
// this daemon.
func (h *Hub) accept() func(*machine.Stream) {
	if h.cfg.Program == nil {
		return nil
	}
	return func(s *machine.Stream) {
		go func() {
			defer s.Close()
			to, _, _ := machine.Parse(s.RemoteAddr().String())
			done, ok := h.offers.take(to.Machine)
			if !ok {
				return
			}
			defer done()
			_ = s.SetDeadline(time.Now().Add(downloadTime))
			f, err := h.cfg.Program.Open()
			if err != nil {
				h.cfg.Logger.Error("sending a machine its program", "error", err)
				return
			}
			defer f.Close()
			_, _ = io.Copy(s, f) // the machine knows the size and the digest
			_ = s.CloseWrite()
			_, _ = io.Copy(io.Discard, s) // until the machine has it
		}()
	}
}
