package term

import (
	"io"
	"sync"

	"github.com/schollz/progressbar/v3"
)

// bar shows on a terminal how the fetching of an image goes: its phase, and the bytes that are done. It may be used
// concurrently.
type bar struct {
	w io.Writer

	mu    sync.Mutex
	phase string
	bar   *progressbar.ProgressBar
	over  bool
}

// NewBar returns a bar on a terminal, which appears with the first progress.
func NewBar(w io.Writer) *bar { return &bar{w: w} }

func (b *bar) Show(phase string, done, total int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return
	}
	if b.bar == nil || phase != b.phase {
		b.finish()
		b.phase = phase
		size := total
		if size <= 0 {
			size = -1 // a spinner
		}
		b.bar = progressbar.NewOptions64(size,
			progressbar.OptionSetWriter(b.w), progressbar.OptionSetDescription(Visible(phase)),
			progressbar.OptionShowBytes(true), progressbar.OptionSetWidth(30),
			progressbar.OptionClearOnFinish(), progressbar.OptionUseANSICodes(true))
	}
	if total > 0 {
		b.bar.ChangeMax64(total)
	}
	_ = b.bar.Set64(done)
}

func (b *bar) finish() {
	if b.bar != nil {
		_ = b.bar.Clear()
		b.bar = nil
	}
}

// Clear removes the bar for good. It may be called again.
func (b *bar) Clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.finish()
	b.over = true
}
