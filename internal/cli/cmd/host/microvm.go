package host

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/term"
)

// microvmCmd prepares this machine for the provider microvm.
func (a providerCommands) microvmCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "microvm", Example: "  atoll microvm setup",
		Short:   "Prepare this machine for sandboxes that are virtual machines",
		GroupID: resource.GroupMachine,
	}
	var kernel string
	setup := &cobra.Command{
		Use:   "setup",
		Short: "Find or download a kernel, and start a virtual machine with it",
		Long: `Setup finds a Linux kernel for the provider microvm: the one given with --kernel,
else one in /boot, else the one in the package linux-image-cloud of Debian or of a
distribution like it, which is downloaded and unpacked into the state directory, and
not installed. It then starts a virtual machine to find out whether this machine can,
and says what it does. QEMU must be installed.`,
		Example: `  atoll microvm setup
  atoll microvm setup --kernel /boot/vmlinuz-6.1.0-amd64`,
		Args: cobra.NoArgs,
	}
	setup.Flags().StringVar(&kernel, "kernel", "", "`path` of a kernel, or of a directory with boot and lib/modules")
	setup.RunE = resource.Interruptible(func(ctx context.Context, _ []string) error {
		system, err := a.Node()
		if err != nil {
			return err
		}
		open, end, err := system.Trial("microvm")
		if err != nil {
			return err
		}
		p, err := open(ctx)
		if err != nil {
			return errors.Join(err, end())
		}
		prepare, ok := driver.As[driver.Preparer](p)
		if !ok {
			return errors.Join(errors.New("the provider microvm needs no setup"), p.Close(), end())
		}
		err = prepare.Prepare(ctx, kernel, func(line string) { _ = a.Printf("%s\n", term.Visible(line)) })
		return errors.Join(err, p.Close(), end())
	})
	cmd.AddCommand(setup)
	return cmd
}
