// Command server serves a bucket, as the program does: static, because it gives
// up its capabilities for all threads, which cgo does not know how to.
package main

import "github.com/atoll-run/atoll/internal/bucket"

func main() { bucket.Main() }
