//go:build !linux

// On systems other than Linux, atoll is only a client of a daemon that runs on
// Linux.

package main

import (
	"context"
	"os"
	"runtime"

	"github.com/atoll-run/atoll/internal/cli"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
)

func main() {
	app := &cli.App{Env: &target.Env{
		Term:    &term.Term{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, LookupEnv: os.LookupEnv},
		Version: target.Version{Atoll: atollVersion(), Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH},
	}}
	os.Exit(app.Main(context.Background(), os.Args[1:]))
}
