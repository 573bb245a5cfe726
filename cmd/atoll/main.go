//go:build linux && !light

package main

import (
	"context"
	"os"
	"runtime"

	"github.com/atoll-run/atoll/internal/bucket"
	"github.com/atoll-run/atoll/internal/cli"
	"github.com/atoll-run/atoll/internal/cli/cmd/operate"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/node"
	"github.com/atoll-run/atoll/internal/gateway/egress"
	_ "github.com/atoll-run/atoll/internal/guest/early" // must be initialised before everything else
	"github.com/atoll-run/atoll/internal/unpack"
	"github.com/atoll-run/atoll/provider/all"
	"github.com/atoll-run/atoll/provider/gvisor"
)

func main() {
	egress.Main() // does not return in the gateway's process
	gvisor.Main() // does not return in a process of a sandbox
	bucket.Main() // does not return in a process that serves a bucket
	providers := all.Builtin()
	app := &cli.App{
		Env: &target.Env{
			Term:      &term.Term{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, LookupEnv: os.LookupEnv},
			Open:      func(dir string) (target.System, error) { return node.Open(dir, providers, os.LookupEnv) },
			Providers: known(),
			Version: target.Version{
				Atoll: atollVersion(), Engine: version("gvisor.dev/gvisor"), Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH,
			},
		},
		Up:      func(ctx context.Context, o operate.UpOptions) (operate.Daemon, error) { return up(ctx, providers, o) },
		Restore: daemon.Restore, Accept: daemon.Accept,
		Machine: machineProgram{providers[0]}, Program: unpack.Self(),
	}
	os.Exit(app.Main(context.Background(), os.Args[1:]))
}
