package wire_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"testing/iotest"

	"github.com/atoll-run/atoll/internal/guest/wire"
)

// TestSkipPast finds the nonce after any data, including data that starts like
// the nonce, and reads nothing after it.
func TestSkipPast(t *testing.T) {
	nonce := bytes.Repeat([]byte{7, 7, 7, 9}, wire.NonceLen/4)
	nonce[len(nonce)-1] = 1 // otherwise the nonce would match its own beginning
	for name, before := range map[string][]byte{
		"nothing":       nil,
		"noise":         []byte("noise before it"),
		"its beginning": nonce[:31],
		"its middle":    nonce[4:],
		"half of it":    append(append([]byte{}, nonce[:16]...), nonce[:13]...),
		"a lot":         bytes.Repeat([]byte{7}, 100_000),
	} {
		all := append(append(append([]byte{}, before...), nonce...), "after"...)
		for _, r := range []io.Reader{bytes.NewReader(all), iotest.OneByteReader(bytes.NewReader(all)), iotest.HalfReader(bytes.NewReader(all))} {
			if err := wire.SkipPast(r, nonce); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if rest, err := io.ReadAll(r); string(rest) != "after" {
				t.Errorf("%s: %q is left, %v", name, rest, err)
			}
		}
	}
}

// TestSkipPastGivesUp checks that reading stops if the nonce never arrives.
func TestSkipPastGivesUp(t *testing.T) {
	nonce := make([]byte, wire.NonceLen)
	for i := range nonce {
		nonce[i] = byte(rand.Uint32() | 1)
	}
	if err := wire.SkipPast(endless{}, nonce); !errors.Is(err, wire.ErrProtocol) {
		t.Errorf("got %v", err)
	}
	if err := wire.SkipPast(bytes.NewReader(nonce[:20]), nonce); !errors.Is(err, io.EOF) {
		t.Errorf("got %v", err)
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}
