package agent

import (
	"bytes"
	"sort"
	"sync"
)

// Limits of the stored output of background commands.
const (
	logCap   = 1 << 20  // bytes of one command
	logTotal = 64 << 20 // bytes of all commands together
	maxPiece = 32 << 10 // bytes of one piece
)

// logs is the memory that all logs share.
type logs struct {
	mu   sync.Mutex
	used int
}

// take reserves n bytes of memory. With must it always succeeds.
func (l *logs) take(n int, must bool) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.used+n > logTotal && !must {
		return false
	}
	l.used += n
	return true
}

func (l *logs) give(n int) {
	l.mu.Lock()
	l.used -= n
	l.mu.Unlock()
}

// cmdLog keeps the last output of one command, both streams in the order in
// which they were written. A position is the number of bytes written before it.
type cmdLog struct {
	all *logs

	mu      sync.Mutex
	pieces  []piece
	end     int64 // bytes written in total
	kept    int
	streams int // streams that can still be written
	changed chan struct{}

	limit int // bytes to keep
	// holder has the command's seat. While it is set, bytes that it has not
	// received are not dropped: the writer waits.
	holder *caller
	got    [3]int64   // by stream, the position up to which the holder was sent it
	behind int64      // how much of that may still be in transit
	room   *sync.Cond // signals waiting writers

	written   [3]int64 // by stream, bytes in total
	lost      [3]int64 // by stream, the position after the last byte that was dropped
	forgotten bool     // the memory was freed; nothing is kept any more
}

type piece struct {
	at     int64
	stream byte
	off    int64 // bytes of its stream before it
	data   []byte
}

func newLog(all *logs, streams int) *cmdLog {
	l := &cmdLog{all: all, streams: streams, limit: logCap}
	l.room = sync.NewCond(&l.mu)
	return l
}

// write appends, and drops the oldest bytes to make room.
func (l *cmdLog) write(stream byte, p []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(p) > 0 {
		n := min(len(p), maxPiece)
		for l.kept+n > l.limit && !l.forgotten {
			if l.awaited(&l.pieces[0]) {
				l.wake()
				l.room.Wait()
				continue
			}
			l.shift()
		}
		l.add(stream, p[:n])
		p = p[n:]
	}
	l.wake()
}

// awaited reports whether the holder has yet to receive a piece.
func (l *cmdLog) awaited(p *piece) bool {
	return l.holder != nil && l.got[p.stream]-l.behind < p.at+int64(len(p.data))
}

// hold makes who the holder, with the bytes it has received so far.
func (l *cmdLog) hold(who *caller) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holder = who
}

// reached records how far a stream was sent to who.
func (l *cmdLog) reached(who *caller, stream byte, at int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.holder == who {
		l.got[stream] = at
		l.room.Broadcast()
	}
}

// release stops waiting for who.
func (l *cmdLog) release(who *caller) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.holder == who {
		l.holder = nil
		l.room.Broadcast()
	}
}

func (l *cmdLog) add(stream byte, p []byte) {
	off := l.written[stream]
	l.written[stream] += int64(len(p))
	for !l.forgotten && !l.all.take(len(p), l.holder != nil && (len(l.pieces) == 0 || l.awaited(&l.pieces[0]))) {
		if len(l.pieces) == 0 {
			l.drop(stream, p) // no room at all
			return
		}
		l.shift()
	}
	if l.forgotten {
		l.drop(stream, p)
		return
	}
	l.kept += len(p)
	if k := len(l.pieces); k > 0 {
		last := &l.pieces[k-1]
		if last.stream == stream && last.at+int64(len(last.data)) == l.end && len(last.data)+len(p) <= maxPiece {
			last.data = append(last.data, p...)
			l.end += int64(len(p))
			return
		}
	}
	l.pieces = append(l.pieces, piece{at: l.end, stream: stream, off: off, data: bytes.Clone(p)})
	l.end += int64(len(p))
}

// drop counts bytes that are not kept.
func (l *cmdLog) drop(stream byte, p []byte) {
	l.end += int64(len(p))
	l.lost[stream] = l.end
}

// from returns the position that follows the first off bytes of a stream. If
// some bytes after that were dropped, the position is later; begins is its
// offset in the stream.
func (l *cmdLog) from(stream byte, off int64) (at, begins int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.pieces {
		p := &l.pieces[i]
		if p.stream == stream && p.off+int64(len(p.data)) > off {
			begins = max(off, p.off)
			return p.at + begins - p.off, begins
		}
	}
	return l.end, l.written[stream]
}

// shift drops the oldest piece.
func (l *cmdLog) shift() {
	p := &l.pieces[0]
	n := len(p.data)
	l.lost[p.stream] = p.at + int64(n)
	l.pieces[0].data = nil
	l.pieces = l.pieces[1:]
	l.kept -= n
	l.all.give(n)
}

// close records that a stream has ended.
func (l *cmdLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.streams--
	l.wake()
}

// forget frees the memory.
func (l *cmdLog) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.pieces) > 0 {
		l.shift()
	}
	l.streams, l.forgotten, l.holder = 0, true, nil
	l.room.Broadcast()
	l.wake()
}

func (l *cmdLog) wake() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}

// next copies bytes from position at into buf: of one stream, or of both if
// stream is 0. If there are none, it returns a channel that is closed at the
// next change, or nil if no change will follow.
func (l *cmdLog) next(at int64, stream byte, buf []byte) (r logRead, wait <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.missing = stream != 0 && at < l.lost[stream]
	i := sort.Search(len(l.pieces), func(i int) bool {
		return l.pieces[i].at+int64(len(l.pieces[i].data)) > at
	})
	for ; i < len(l.pieces); i++ {
		p := &l.pieces[i]
		if stream != 0 && p.stream != stream {
			continue
		}
		from := max(at, p.at)
		n := copy(buf, p.data[from-p.at:])
		return logRead{n: n, stream: p.stream, next: from + int64(n), dropped: from - at, missing: r.missing}, nil
	}
	r.next = l.end
	r.dropped = l.end - at
	if l.streams <= 0 {
		return r, nil
	}
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return r, l.changed
}

// logRead is a piece that was read. For a reader of one stream, dropped also
// counts the bytes that were skipped.
type logRead struct {
	n       int
	stream  byte
	next    int64
	dropped int64
	missing bool // the bytes that follow in the stream were dropped
}

// tail returns the position of the last lines lines.
func (l *cmdLog) tail(lines int) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := len(l.pieces) - 1; i >= 0; i-- {
		data := l.pieces[i].data
		end := len(data)
		if i == len(l.pieces)-1 && end > 0 && data[end-1] == '\n' {
			end-- // ends the last line instead of beginning another
		}
		for {
			j := bytes.LastIndexByte(data[:end], '\n')
			if j < 0 {
				break
			}
			if lines--; lines == 0 {
				return l.pieces[i].at + int64(j) + 1
			}
			end = j
		}
	}
	return 0
}
