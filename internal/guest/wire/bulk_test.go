package wire

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
)

// sizes records the sizes of the data frames written to a connection and the
// number of credit frames.
type sizes struct {
	net.Conn
	most    uint32
	credits int
}

func (s *sizes) Write(b []byte) (int, error) {
	if len(b) >= HeaderLen {
		switch h := parseHeader(b); h.kind { // frames are written one by one, or small ones together
		case kindData:
			s.most = max(s.most, h.size)
		case kindCredit:
			s.credits++
		}
	}
	return s.Conn.Write(b)
}

// TestBulk moves much data in both directions: in large frames if both sides
// and the operation support them, else in small ones.
func TestBulk(t *testing.T) {
	content := bytes.Repeat([]byte("0123456789abcdef"), 3*BulkWindow/16+5)
	for name, c := range map[string]struct {
		peer   Peer
		method Method
		most   uint32
	}{
		"files":              {Peer{bulk: true}, Read, BulkFrame - HeaderLen},
		"commands":           {Peer{bulk: true}, Exec, MaxData},
		"an earlier version": {Peer{}, Read, MaxData},
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := net.Pipe()
			client, guest := &sizes{Conn: ours}, &sizes{Conn: theirs}
			served := make(chan struct{})
			go func() {
				defer close(served)
				_ = Serve(guest, c.peer, func(op *Op) {
					got, err := io.ReadAll(op.In(0))
					if err != nil {
						t.Error(err)
					}
					if err := sendAll(op, got); err != nil {
						t.Error(err)
					}
					op.End(nil)
				})
			}()
			conn := NewClient(client, c.peer)
			op := open(t, conn, c.method, "")
			if err := sendAll(op, content); err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			if _, err := op.In(0).WriteTo(&got); err != nil || !bytes.Equal(got.Bytes(), content) {
				t.Errorf("%d bytes came back: %v", got.Len(), err)
			}
			conn.Close()
			<-served
			if client.most != c.most || guest.most != c.most {
				t.Errorf("frames of %d and %d bytes, want %d at most", client.most, guest.most, c.most)
			}
			window := Window
			if c.most > MaxData {
				window = BulkWindow
			}
			if most := len(content) / (window / 2); client.credits == 0 || client.credits > most {
				t.Errorf("credit was given %d times, want %d at most", client.credits, most)
			}
		})
	}
}

// sendAll sends content frame by frame, and its end.
func sendAll(op *Op, content []byte) error {
	for sent := 0; sent < len(content); {
		frame := op.NextFrame(int64(sent))
		n := copy(frame[HeaderLen:], content[sent:])
		if err := op.SendFrame(0, frame[:HeaderLen+n]); err != nil {
			return err
		}
		sent += n
	}
	return op.CloseWrite(0)
}

// TestHostileBulk sends more than was agreed.
func TestHostileBulk(t *testing.T) {
	frame := func(size int) []byte {
		b := make([]byte, HeaderLen+size)
		header{size: uint32(size), op: 1, kind: kindData}.put(b)
		return b
	}
	for name, c := range map[string]struct {
		peer    Peer
		method  Method
		hostile []byte
	}{
		"a large frame of an earlier version": {Peer{}, Read, frame(MaxData + 1)},
		"too large a frame":                   {Peer{bulk: true}, Read, frame(BulkData + 1)},
		"more than the window":                {Peer{bulk: true}, Read, bytes.Repeat(frame(BulkData), BulkWindow/BulkData+1)},
		"more than that of a command":         {Peer{bulk: true}, Exec, bytes.Repeat(frame(BulkData), Window/BulkData+1)},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := net.Pipe()
			conn := NewClient(a, c.peer)
			defer conn.Close()
			go io.Copy(io.Discard, b)
			op := open(t, conn, c.method, "")
			go func() { _, _ = b.Write(c.hostile) }()
			<-op.Over()
			if _, err := op.Result(); !errors.Is(err, ErrProtocol) {
				t.Errorf("the operation ended with %v", err)
			}
		})
	}
}
