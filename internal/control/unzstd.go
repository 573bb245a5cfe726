package control

import (
	"bufio"
	"bytes"
	"errors"
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/atoll-run/atoll/sandbox"
)

// maxWindow bounds the memory of unpacking a compressed archive, in bytes. The
// usual levels of zstd need 8 MiB at most; --long of up to 27 fits too.
const maxWindow = 128 << 20

// uncompressed returns r, or what is in it if it is compressed with zstd.
// Nothing has to be closed: the decoder starts no goroutine.
func uncompressed(r io.Reader) (io.Reader, error) {
	head := bufio.NewReader(r)
	magic, err := head.Peek(4)
	if err != nil && err != io.EOF {
		return nil, err
	}
	if !bytes.Equal(magic, []byte{0x28, 0xb5, 0x2f, 0xfd}) {
		return head, nil
	}
	source := &watched{r: head}
	dec, err := zstd.NewReader(source, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return nil, err
	}
	return &unzstd{dec, source}, nil
}

// compressed has write write to w, compressed with zstd. If write fails, what w
// got is no whole stream, and whoever reads it is told so.
func compressed(w io.Writer, write func(io.Writer) error) error {
	enc, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithEncoderConcurrency(2))
	if err != nil {
		return err
	}
	if err := write(enc); err != nil {
		enc.Reset(nil) // ends its goroutines, and writes nothing more
		return err
	}
	return enc.Close()
}

// watched remembers how its reader failed.
type watched struct {
	r   io.Reader
	err error
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	if err != nil && err != io.EOF {
		w.err = err
	}
	return n, err
}

// unzstd tells a stream that broke off from one that is no zstd.
type unzstd struct {
	dec    *zstd.Decoder
	source *watched
}

func (u *unzstd) Read(p []byte) (int, error) {
	n, err := u.dec.Read(p)
	switch {
	case err == nil || err == io.EOF:
	case u.source.err != nil:
		err = u.source.err
	case errors.Is(err, zstd.ErrWindowSizeExceeded):
		err = &sandbox.Error{Code: sandbox.CodeInvalid, Message: "the archive needs too much memory to be unpacked", Hint: "compress it without --ultra or --long"}
	default:
		err = &sandbox.Error{Code: sandbox.CodeInvalid, Message: "the archive is not properly compressed", Cause: err}
	}
	return n, err
}
