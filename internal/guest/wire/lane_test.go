package wire

import (
	"errors"
	"io"
	"testing"
)

// dropping is a connection during whose reading somebody lets go of the lane.
type dropping struct{ l *inLane }

func (d dropping) Read(p []byte) (int, error) {
	d.l.drop(errDone)
	return len(p), nil
}

// TestDropWhileFilling: bytes that arrive for a lane that is being dropped are
// gone, and its reader gets the reason and nothing else.
func TestDropWhileFilling(t *testing.T) {
	op := newOp(&Conn{}, 1, Exec)
	l := &op.in[0]
	if err := l.fill(dropping{l}, 5000); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if n, err := l.Read(make([]byte, 10)); n != 0 || !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("%d, %v", n, err)
		}
	}
}
