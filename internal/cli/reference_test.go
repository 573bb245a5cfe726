package cli

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

var update = flag.Bool("update", false, "write docs/reference/cli.md anew")

// The reference of the command line is what the commands themselves say. After
// a change: go test ./internal/cli -run TestReference -update
func TestReference(t *testing.T) {
	const file = "../../docs/reference/cli.md"
	app := &App{Providers: []ProviderInfo{{Name: "gvisor"}}}
	root := app.root()
	root.InitDefaultCompletionCmd()
	var b strings.Builder
	b.WriteString("# Command line\n\nGenerated from the commands' own help.\n")
	reference(&b, root)
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != b.String() {
		t.Errorf("%s is not what the commands say; write it anew with: go test ./internal/cli -run TestReference -update", file)
	}
}

// reference writes the help of a command and of all below it.
func reference(b *strings.Builder, cmd *cobra.Command) {
	if cmd.Hidden || cmd.Name() == "help" || cmd.Parent() != nil && cmd.Parent().Name() == "completion" {
		return
	}
	if pool := cmd.Flags().Lookup("pool"); pool != nil {
		pool.DefValue = "number of processors, at most 8"
	}
	text := cmd.Long
	if text == "" {
		text = cmd.Short
	}
	fmt.Fprintf(b, "\n## %s\n\n```text\n%s\n", cmd.CommandPath(), strings.TrimSpace(text))
	if cmd.Runnable() {
		fmt.Fprintf(b, "\nUsage:\n  %s\n", cmd.UseLine())
	}
	if cmd.HasExample() {
		fmt.Fprintf(b, "\nExamples:\n%s\n", cmd.Example)
	}
	if flags := cmd.LocalFlags(); flags.HasAvailableFlags() {
		fmt.Fprintf(b, "\nFlags:\n%s", flags.FlagUsages())
	}
	b.WriteString("```\n")
	for _, sub := range cmd.Commands() {
		reference(b, sub)
	}
}
