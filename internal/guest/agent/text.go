package agent

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/guest/wire"
)

// converse connects a link with a caller that can only transfer text. The
// caller gets the link's output as lines of base64 on the standard output, and
// writes lines into a named pipe. The first line is empty and says that the
// pipe exists; later empty lines are keepalives.
func converse(link io.ReadWriteCloser, feed string) int {
	if err := unix.Mkfifo(feed, 0o600); err != nil {
		return 1
	}
	defer os.Remove(feed)
	// Holding a write end keeps the pipe open when other writers close it.
	in, err := os.OpenFile(feed, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return 1
	}
	out := &textWriter{to: os.NewFile(1, "stdout")}
	beat := time.NewTicker(wire.JoinSilence / 3)
	defer beat.Stop()
	go func() {
		for {
			if _, err := out.Write(nil); err != nil {
				return
			}
			<-beat.C
		}
	}()
	go func() {
		_ = deframe(link, &textReader{file: in, lines: bufio.NewReader(in)})
		link.Close()
	}()
	_, _ = io.Copy(out, link)
	return 0
}

// textWriter writes a line of base64 for each Write.
type textWriter struct {
	mu sync.Mutex
	to io.Writer
}

func (w *textWriter) Write(b []byte) (int, error) {
	line := base64.StdEncoding.AppendEncode(make([]byte, 0, base64.StdEncoding.EncodedLen(len(b))+1), b)
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := w.to.Write(append(line, '\n')); err != nil {
		return 0, err
	}
	return len(b), nil
}

// maxLine limits the bytes in a line of input.
const maxLine = 1 << 20

// textReader decodes lines. A line is base64 or, for longer data, "@", the path
// of a file with the data, and its SHA-256. textReader removes the file.
type textReader struct {
	file  *os.File
	lines *bufio.Reader
	line  []byte // the part of a line that was read before the deadline
	rest  []byte
}

func (r *textReader) SetReadDeadline(t time.Time) error { return r.file.SetReadDeadline(t) }

func (r *textReader) Read(b []byte) (int, error) {
	for len(r.rest) == 0 {
		more, err := r.lines.ReadSlice('\n')
		r.line = append(r.line, more...)
		switch {
		case errors.Is(err, bufio.ErrBufferFull) && len(r.line) < maxLine:
			continue
		case err != nil:
			return 0, err
		}
		line := bytes.TrimSpace(r.line)
		r.line = nil
		if r.rest, err = meaning(line); err != nil {
			return 0, err
		}
	}
	n := copy(b, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// meaning decodes a line.
func meaning(line []byte) ([]byte, error) {
	if len(line) == 0 || line[0] != '@' {
		return base64.StdEncoding.AppendDecode(nil, line)
	}
	file, sum, _ := strings.Cut(string(line[1:]), " ")
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	_ = os.Remove(file) // it is not needed any more
	// Where the file was not written by root, its content is checked.
	if got := sha256.Sum256(data); hex.EncodeToString(got[:]) != sum {
		return nil, wire.ErrProtocol
	}
	return data, nil
}
