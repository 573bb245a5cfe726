package cli

import (
	_ "embed"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/internal/cli/term"
)

// wordsScript defines, in bash, what cobra's script takes from the package
// bash-completion, for machines without that package.
//
//go:embed words.bash
var wordsScript string

// completeWithoutPackage makes the bash script work without the package
// bash-completion.
func completeWithoutPackage(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	bash, _, err := root.Find([]string{"completion", "bash"})
	if err != nil {
		return // there is none
	}
	script := bash.RunE
	bash.RunE = func(cmd *cobra.Command, args []string) error {
		if err := term.Writef(cmd.OutOrStdout(), "%s\n", term.Painted(wordsScript)); err != nil {
			return err
		}
		return script(cmd, args)
	}
	bash.Long = `Write the script that completes commands, flags and names in bash. To use it in this
shell:

  source <(atoll completion bash)

In every new one, as root:

  atoll completion bash >/etc/bash_completion.d/atoll

Without the package bash-completion, which reads that directory, add the first line
to ~/.bashrc.`
}
