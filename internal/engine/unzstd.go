package engine

import (
	"bufio"
	"bytes"
	"errors"
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/atoll-run/atoll/sandbox"
)

// maxWindow limits the memory for decompression in bytes. The usual levels of
// zstd need at most 8 MiB; --long of up to 27 fits, too.
const maxWindow = 128 << 20

// uncompressed returns r, decompressed if it is a zstd stream. Nothing has to
// be closed: the decoder starts no goroutine.
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

// compressed calls write and compresses its output with zstd to w. If write
// fails, the stream is left incomplete, so that its reader gets an error.
func compressed(w io.Writer, write func(io.Writer) error) error {
	enc, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedDefault), zstd.WithEncoderConcurrency(2))
	if err != nil {
		return err
	}
	if err := write(enc); err != nil {
		enc.Reset(nil) // ends its goroutines without writing anything
		return err
	}
	return enc.Close()
}

// watched stores the error of its reader.
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

// unzstd distinguishes an incomplete stream from one that is not zstd.
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
		err = &sandbox.Error{Code: sandbox.CodeInvalid, Message: "the archive is not a valid zstd stream", Cause: err}
	}
	return n, err
}
