package scratch

import "io"

// Directories cannot be locked here, so what a killed process leaves stays in
// the temporary directory, as with other programs.

func hold(string) (io.Closer, error) { return io.NopCloser(nil), nil }

func sweepOne(string) {}
