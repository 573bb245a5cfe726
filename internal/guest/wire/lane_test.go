package wire

import (
	"errors"
	"io"
	"testing"
)

// dropping is a reader during whose Read the lane is dropped.
type dropping struct{ l *inLane }

func (d dropping) Read(p []byte) (int, error) {
	d.l.drop(errDone)
	return len(p), nil
}

// TestDropWhileFilling checks that bytes for a dropped lane are discarded and
// that its reader gets only the reason.
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
