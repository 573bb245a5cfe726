//go:build unix

package term

import (
	"os"
	"os/signal"
	"syscall"
)

// NotifyResize sends a signal to changed whenever the terminal has a new size,
// until signal.Stop is called.
func NotifyResize(changed chan os.Signal) { signal.Notify(changed, syscall.SIGWINCH) }
