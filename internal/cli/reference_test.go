package cli

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/atoll-run/atoll/internal/cli/target"
)

var update = flag.Bool("update", false, "write docs/reference/cli.md anew")

// The reference of the command line is what the commands themselves say. After
// a change: go test ./internal/cli -run TestReference -update
func TestReference(t *testing.T) {
	const file = "../../docs/reference/cli.md"
	app := &App{Env: &target.Env{Providers: []target.ProviderInfo{{Name: "gvisor"}}}}
	root := app.root()
	root.InitDefaultCompletionCmd()
	var b strings.Builder
	b.WriteString("# Command line\n\nGenerated from the commands' own help.\n\n## Common flags\n\nSeveral commands have these flags; their sections name them only.\n\n```text\n")
	shared := sharedFlags(root)
	for _, name := range slices.Sorted(maps.Keys(shared)) {
		b.WriteString(shared[name])
	}
	b.WriteString("```\n")
	reference(&b, root, shared)
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

// undocumented reports whether a command is left out of the reference.
func undocumented(cmd *cobra.Command) bool {
	return cmd.Hidden || cmd.Name() == "help" || cmd.Parent() != nil && cmd.Parent().Name() == "completion"
}

// flagUsage returns the line of the help about one flag, with a line feed.
func flagUsage(f *pflag.Flag) string {
	alone := pflag.NewFlagSet("", pflag.ContinueOnError)
	alone.AddFlag(f)
	return alone.FlagUsages()
}

// sharedFlags returns the lines about the flags that at least three commands have
// in the same words, by name. Of a flag that different commands explain in
// different words, it has the most frequent line.
func sharedFlags(root *cobra.Command) map[string]string {
	count := map[string]map[string]int{}
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		if undocumented(cmd) {
			return
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if count[f.Name] == nil {
				count[f.Name] = map[string]int{}
			}
			count[f.Name][flagUsage(f)]++
		})
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	visit(root)
	shared := map[string]string{}
	for name, lines := range count {
		most := slices.MaxFunc(slices.Sorted(maps.Keys(lines)), func(a, b string) int { return cmp.Compare(lines[a], lines[b]) })
		if lines[most] >= 3 && len(strings.Fields(most)) > 3 {
			shared[name] = most
		}
	}
	return shared
}

// reference writes the help of a command and of all below it. Of shared flags it
// writes the names.
func reference(b *strings.Builder, cmd *cobra.Command, shared map[string]string) {
	if undocumented(cmd) {
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
	if usage := strings.ReplaceAll(cmd.UseLine(), " [flags]", ""); cmd.Runnable() && usage != cmd.CommandPath() {
		fmt.Fprintf(b, "\nUsage:\n  %s\n", usage)
	}
	if cmd.HasExample() {
		fmt.Fprintf(b, "\nExamples:\n%s\n", cmd.Example)
	}
	own, common := pflag.NewFlagSet("", pflag.ContinueOnError), []string(nil)
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		switch {
		case f.Hidden:
		case shared[f.Name] == flagUsage(f):
			common = append(common, "--"+f.Name)
		default:
			own.AddFlag(f)
		}
	})
	if own.HasAvailableFlags() {
		fmt.Fprintf(b, "\nFlags:\n%s", own.FlagUsages())
	}
	if len(common) > 0 {
		fmt.Fprintf(b, "\nCommon flags: %s\n", strings.Join(common, " "))
	}
	b.WriteString("```\n")
	for _, sub := range cmd.Commands() {
		reference(b, sub, shared)
	}
}
