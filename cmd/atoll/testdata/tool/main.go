// Command tool is the only program in the images of the scripts. It reports how
// it was started.
package main

import (
	"fmt"
	"os"
	"strings"
)

func main() {
	dir, _ := os.Getwd()
	fmt.Printf("args=%s dir=%s uid=%d gid=%d FLAVOUR=%s\n", strings.Join(os.Args, ","), dir, os.Getuid(), os.Getgid(), os.Getenv("FLAVOUR"))
}
