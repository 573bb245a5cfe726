package operate

import (
	"context"
	"errors"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
)

// maxAddress limits the size of a file with the address of a store.
const maxAddress = 64 << 10

// storeAddress returns the address of the daemon's database: from the flag,
// else from the file, else from the environment. It may contain a password,
// which must not be on a command line.
func storeAddress(a *target.Env, flag, file string) (string, error) {
	switch {
	case flag != "":
		u, err := url.Parse(flag)
		if err != nil {
			return "", term.BadFlag("store", "is not a usable address")
		}
		_, password := u.User.Password()
		for name := range u.Query() {
			password = password || strings.Contains(strings.ToLower(name), "password")
		}
		if password {
			e := term.BadFlag("store", "every user of this machine can read a password on a command line")
			e.Hint = "put the address into $ATOLL_STORE, or into a file for --store-file"
			return "", e
		}
		return flag, nil
	case file != "":
		return addressFile("store-file", file)
	}
	address, _ := a.LookupEnv("ATOLL_STORE")
	return address, nil
}

// addressFile reads an address that may hold a password.
func addressFile(flag, path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", term.BadFlag(flag, "cannot be read: %v", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && info.Mode().Perm()&0o077 != 0 {
		e := term.BadFlag(flag, "%s can be read by other users", path)
		e.Hint = "run: chmod 600 " + path
		return "", e
	}
	text, err := io.ReadAll(io.LimitReader(f, maxAddress))
	if err != nil {
		return "", term.BadFlag(flag, "cannot be read: %v", err)
	}
	address := strings.TrimSpace(string(text))
	if address == "" {
		return "", term.BadFlag(flag, "%s is empty", path)
	}
	return address, nil
}

// stateCommands are atoll state.
type stateCommands struct {
	*target.Env
	restore func(ctx context.Context, stateDir, backup string) (replaced string, err error) // nil in a client
	accept  func(ctx context.Context, stateDir string) (lost []string, err error)           // nil in a client
}

func (a stateCommands) stateCmd() *cobra.Command {
	return resource.Parent(&cobra.Command{
		Use: "state", Short: "Back up and restore the state of the daemon", GroupID: resource.GroupDaemon,
		Example: `  atoll state backup`,
	}, a.stateBackupCmd(), a.stateRestoreCmd(), a.stateAcceptCmd())
}

func (a stateCommands) stateBackupCmd() *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use: "backup", Short: "Write a consistent copy of the daemon's database to a file", Args: cobra.NoArgs,
		Long: `Backup writes a copy of the daemon's database while the daemon runs, and prints the
name of the file. It never overwrites a file and never leaves an incomplete one. The
copy contains records, hashes of API keys and the log, but no sandboxes, no images
and no secrets.

To go back to a copy: atoll state restore.

A PostgreSQL database is backed up with its own tools.`,
		Example: `  atoll state backup
  atoll state backup --to atoll-copy.db`,
	}
	cmd.Flags().StringVar(&to, "to", "", "the file to write (default: atoll-TIME.db here)")
	cmd.RunE = resource.WithDaemon(a.Env, func(ctx context.Context, c *atoll.Client, _ []string) error {
		path := to
		if path == "" {
			path = "atoll-" + time.Now().UTC().Format("20060102T150405Z") + ".db"
		}
		copied, err := c.Admin().Backup(ctx)
		if err != nil {
			return err
		}
		defer copied.Close()
		if err := saveNew(path, copied); err != nil {
			return err
		}
		return a.Println(path)
	})
	return cmd
}

func (a stateCommands) stateRestoreCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "restore FILE", Short: "Go back to a copy of the daemon's database", Args: cobra.ExactArgs(1),
		Long: `Restore puts a copy that atoll state backup made in the place of the daemon's
database. The daemon must not run; see: atoll down. A copy that cannot be used changes
nothing. The database that it replaces is moved to a new directory in the state
directory, whose name is printed, with the anchors of the log: they know of records
after the copy was made.

When the daemon starts again, it compares the records with the sandboxes that run, and
keeps those that it does not know.`,
		Example: `  atoll state restore atoll-copy.db`,
	}
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		if a.restore == nil {
			return a.InEngine("no daemon can run on this machine")
		}
		if _, err := a.Node(); err != nil { // returns an error if the directory cannot be ours
			return err
		}
		replaced, err := a.restore(ctx, filepath.Dir(a.Socket()), args[0])
		if err != nil {
			return err
		}
		a.Say("note", "restored; to start the daemon again: atoll up --detach")
		return a.Println(replaced)
	})
	return cmd
}

func (a stateCommands) stateAcceptCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use: "accept", Short: "Let the daemon start although parts of its state are lost", Args: cobra.NoArgs,
		Long: `Accept makes a state directory usable from which the daemon does not start, because its
database, a key or a directory is missing or comes from elsewhere. It says what is lost
with each of them. It deletes nothing. Put the missing part back instead if you can.`,
		Example: `  atoll state accept`,
	}
	cmd.RunE = resource.Interruptible(func(ctx context.Context, _ []string) error {
		if a.accept == nil {
			return a.InEngine("no daemon can run on this machine")
		}
		if _, err := a.Node(); err != nil {
			return err
		}
		lost, err := a.accept(ctx, filepath.Dir(a.Socket()))
		for _, line := range lost {
			err = errors.Join(err, a.Println(line))
		}
		return err
	})
	return cmd
}

// saveNew writes a stream to a file for its owner only, which appears whole or
// not at all and replaces nothing.
func saveNew(path string, content io.Reader) (err error) {
	failed := func(err error) error {
		e := &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: path, Message: "the copy could not be written", Cause: err}
		if errors.Is(err, os.ErrExist) {
			e.Code, e.Message = sandbox.CodeAlreadyExists, "the file exists"
		} else {
			e.Message += ": " + err.Error()
		}
		return e
	}
	if _, err := os.Lstat(path); err == nil {
		return failed(os.ErrExist)
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".atoll-backup-*")
	if err != nil {
		return failed(err)
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	_, err = io.Copy(tmp, content)
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return failed(err)
	}
	if err := os.Link(tmp.Name(), path); err != nil { // unlike a rename, it replaces nothing
		return failed(err)
	}
	return nil
}
