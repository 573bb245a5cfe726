// Command server serves a bucket like the real program. It must be static,
// because dropping capabilities for all threads does not work with cgo.
package main

import "github.com/atoll-run/atoll/internal/bucket"

func main() { bucket.Main() }
