//go:build linux && light

// This is the light form of atoll, which starts quickly: the command line with a
// client of the daemon. It embeds the program with everything, and continues in
// that when a command needs it.

package main

import (
	"context"
	"embed"
	"os"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/internal/cli"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/internal/unpack"
)

//go:embed built
var embedded embed.FS

// kernelVersion is that of gVisor in the engine; build/scripts/light sets it.
var kernelVersion string

func main() {
	app := &cli.App{Env: &target.Env{
		Term:      &term.Term{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, LookupEnv: os.LookupEnv},
		Engine:    continueInEngine,
		Providers: known(),
		Version:   target.Version{Atoll: atollVersion(), Engine: kernelVersion, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH},
	}}
	os.Exit(app.Main(context.Background(), os.Args[1:]))
}

// continueInEngine returns only if it fails. A shell that completes a word does
// not wait until the engine is unpacked.
func continueInEngine(stateDir string) error {
	packed, err := unpack.Embedded(embedded, "built")
	if err != nil {
		return err
	}
	completes := len(os.Args) > 1 && strings.HasPrefix(os.Args[1], cobra.ShellCompRequestCmd)
	return packed.Exec(stateDir, os.Args[1:], !completes)
}
