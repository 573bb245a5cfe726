//go:build unix

package cli

import (
	"os"
	"os/signal"
	"syscall"
)

// notifyResize sends a signal to changed whenever the terminal has a new size,
// until signal.Stop is called.
func notifyResize(changed chan os.Signal) { signal.Notify(changed, syscall.SIGWINCH) }
