package cli

import (
	"io"
	"sync"

	"github.com/schollz/progressbar/v3"

	"github.com/atoll-run/atoll/internal/engine"
)

// bar shows on a terminal how the fetching of an image goes. It may be used
// concurrently.
type bar struct {
	w io.Writer

	mu    sync.Mutex
	phase string
	bar   *progressbar.ProgressBar
	over  bool
}

func (b *bar) show(p engine.Progress) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.over {
		return
	}
	if b.bar == nil || p.Phase != b.phase {
		b.finish()
		b.phase = p.Phase
		total := p.Total
		if total <= 0 {
			total = -1 // a spinner
		}
		b.bar = progressbar.NewOptions64(total,
			progressbar.OptionSetWriter(b.w), progressbar.OptionSetDescription(visible(p.Phase)),
			progressbar.OptionShowBytes(true), progressbar.OptionSetWidth(30),
			progressbar.OptionClearOnFinish(), progressbar.OptionUseANSICodes(true))
	}
	if p.Total > 0 {
		b.bar.ChangeMax64(p.Total)
	}
	_ = b.bar.Set64(p.Done)
}

func (b *bar) finish() {
	if b.bar != nil {
		_ = b.bar.Clear()
		b.bar = nil
	}
}

// clear removes the bar for good. It may be called again.
func (b *bar) clear() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.finish()
	b.over = true
}
