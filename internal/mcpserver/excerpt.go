package mcpserver

import (
	"fmt"
	"strings"
	"sync"
)

// maxOutput is how much of each stream of a command is shown.
const maxOutput = 32 << 10

// excerpt keeps the beginning and the end of the bytes written to it. Its
// methods may be called concurrently.
type excerpt struct {
	seen func([]byte) // is called with each piece, if it is not nil

	mu         sync.Mutex
	head, tail []byte
	total      int64
}

// Write never fails.
func (e *excerpt) Write(p []byte) (int, error) {
	if e.seen != nil {
		e.seen(p)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.total += int64(len(p))
	rest := p
	if room := maxOutput/2 - len(e.head); room > 0 {
		n := min(room, len(rest))
		e.head, rest = append(e.head, rest[:n]...), rest[n:]
	}
	if len(rest) > maxOutput/2 {
		rest = rest[len(rest)-maxOutput/2:]
	}
	e.tail = append(e.tail, rest...)
	if over := len(e.tail) - maxOutput/2; over > 0 {
		e.tail = append(e.tail[:0], e.tail[over:]...)
	}
	return len(p), nil
}

// text returns the kept output as UTF-8, and the number of bytes written in
// total.
func (e *excerpt) text() (string, int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	left := e.total - int64(len(e.head)+len(e.tail))
	if left == 0 {
		return strings.ToValidUTF8(string(e.head)+string(e.tail), "\uFFFD"), e.total
	}
	return strings.ToValidUTF8(string(e.head), "") + fmt.Sprintf("\n[… %d bytes left out …]\n", left) + strings.ToValidUTF8(string(e.tail), ""), e.total
}
