package wire

import (
	"bytes"
	"io"
)

// MaxStale limits the bytes that were in transit in either direction when the
// guest was saved and that still arrive after it is restored.
const MaxStale = 16 << 20

// SkipPast reads until the end of the nonce and no further. A single read never
// asks for more than the missing part of the nonce.
func SkipPast(r io.Reader, nonce []byte) error {
	begun := 0 // number of nonce bytes at the end of the data read so far
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
