package term

import "os"

// NotifyResize does nothing: Windows has no signal for a terminal's new size. A
// command keeps the size that the terminal had when it began.
func NotifyResize(chan os.Signal) {}
