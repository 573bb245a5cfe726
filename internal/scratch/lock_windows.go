package scratch

import "io"

// Directories cannot be locked on Windows, so the directories of a killed
// process stay in the temporary directory.

func hold(string) (io.Closer, error) { return io.NopCloser(nil), nil }

func sweepOne(string) {}
