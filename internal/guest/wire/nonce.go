package wire

import (
	"bytes"
	"io"
)

// MaxStale bounds what either side may have begun to say before the guest was
// saved, and what is therefore still on its way after it was restored.
const MaxStale = 16 << 20

// SkipPast reads until it has read the nonce, and nothing beyond it: never more
// at once than what is still missing of the nonce.
func SkipPast(r io.Reader, nonce []byte) error {
	begun := 0 // how much of the nonce ends what was read so far
	var last []byte
	for read := 0; begun < len(nonce); {
		b := make([]byte, len(nonce)-begun)
		n, err := r.Read(b)
		if err != nil {
			return err
		}
		if read += n; read > MaxStale {
			return violation("no greeting after %d bytes", read)
		}
		last = append(last, b[:n]...)
		last = last[max(0, len(last)-len(nonce)):]
		for begun = len(last); !bytes.HasPrefix(nonce, last[len(last)-begun:]); begun-- {
		}
	}
	return nil
}
