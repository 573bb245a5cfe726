// Command pack compresses the engine, which the light program embeds: pack ENGINE DIR.
package main

import (
	"fmt"
	"os"

	"github.com/atoll-run/atoll/internal/unpack"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: pack ENGINE DIR")
		os.Exit(2)
	}
	if err := unpack.Pack(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}
