package cli

import "os"

// notifyResize does nothing: Windows has no signal for a terminal's new size. A
// command keeps the size that the terminal had when it began.
func notifyResize(chan os.Signal) {}
