package sandboxes

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/internal/tree"
	"github.com/atoll-run/atoll/sandbox"
)

// copyCommands are atoll cp.
type copyCommands struct{ *target.Env }

func (a copyCommands) cpCmd() *cobra.Command {
	var owner string
	var export driver.ExportOptions
	cmd := &cobra.Command{
		Use:   "cp SANDBOX:PATH LOCAL | LOCAL SANDBOX:PATH",
		Short: "Copy files and directories in and out of a sandbox",
		Long: `Cp copies a file or a directory tree, as cp -R does. If the destination is an existing
directory, the copy keeps its name inside it, and DIR/. stands for what DIR contains;
otherwise the destination is the new name. The local path "-" is a tar stream: standard
input, optionally compressed with zstd, or standard output. Write a local name that
contains a colon as ./NAME.

As with docker cp, an existing file is replaced and not written to: the copy has the mode
of the source, and other hard links to the replaced file keep their content. A link is
followed if it is the destination or the local source, and copied as a link otherwise.
Hard links in a tree are kept. Copying in makes missing directories. If something that
was named cannot be copied, the exit code is not 0.

Copying in is all or nothing: a stream that is cut off or contains a member that is
refused changes nothing in the sandbox. Holes of sparse files are kept.

Files that are copied out belong to you and lose their set-id bits. Devices are
skipped, and nothing is written outside the destination. Files that are copied in
belong to root unless --owner names another user.`,
		Example: `  echo hello > hello.txt
  atoll cp hello.txt demo:/tmp/
  atoll cp demo:/tmp/hello.txt copy.txt
  atoll cp demo:/tmp - | tar -t
  atoll cp --zstd --exclude '*.log' demo:/tmp - > tmp.tar.zst`,
		GroupID: resource.GroupSandbox,
		Args:    cobra.ExactArgs(2), ValidArgsFunction: completePlace(a.Env),
	}
	cmd.Flags().StringVar(&owner, "owner", "0:0", "who the files belong to inside: NAME, UID, NAME:GROUP or UID:GID")
	cmd.Flags().BoolVar(&export.Zstd, "zstd", false, "compress the stream on standard output with zstd")
	cmd.Flags().StringArrayVar(&export.Exclude, "exclude", nil, "copying out: leave out what matches, as * and ? do, relative to what is copied; may be repeated")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, args []string) error {
		fromSandbox, from := splitPlace(args[0])
		toSandbox, to := splitPlace(args[1])
		switch {
		case fromSandbox != "" && toSandbox != "":
			return &term.UsageError{Message: "both are inside a sandbox", Hint: "use a stream: atoll cp " + args[0] + " - | atoll cp - " + toSandbox + ":DIR"}
		case fromSandbox == "" && toSandbox == "":
			return &term.UsageError{Message: "one of the two must be inside a sandbox, written SANDBOX:PATH", Hint: "for example: atoll cp demo:/etc/hosts ."}
		case fromSandbox == "" && (export.Zstd || len(export.Exclude) > 0):
			return &term.UsageError{Message: "--zstd and --exclude are for copying out", Hint: "a stream that is copied in may be compressed: zstd < DIR.tar | atoll cp - SANDBOX:PATH"}
		case export.Zstd && to != "-":
			return &term.UsageError{Message: "--zstd is for a stream", Hint: "write - in place of " + to}
		case fromSandbox != "" && to == "-" && term.IsTerminal(a.Stdout):
			return &sandbox.Error{Code: sandbox.CodeInvalid, Message: "a terminal does not show archives", Hint: "write it to a file: atoll cp " + args[0] + " - >FILE.tar"}
		case fromSandbox != "":
			sb, err := a.Find(ctx, fromSandbox)
			if err != nil {
				return err
			}
			return a.copyOut(ctx, sb, from, to, export)
		}
		sb, err := a.Find(ctx, toSandbox)
		if err != nil {
			return err
		}
		return a.copyIn(ctx, sb, from, to, owner)
	})
	return cmd
}

// splitPlace takes SANDBOX:PATH apart. An argument with a slash before its
// first colon is a local path, as with Docker.
func splitPlace(text string) (sb, p string) {
	name, p, ok := strings.Cut(text, ":")
	if !ok || sandbox.ValidateName(name) != nil {
		return "", text
	}
	return name, p
}

// inside returns the absolute form of a path inside a sandbox: a relative one
// starts at its root.
func inside(p string) string { return path.Clean("/" + p) }

// copyOut copies the file or tree at from to a local place. Nothing in the
// stream is trusted.
func (a copyCommands) copyOut(ctx context.Context, sb target.Sandbox, from, to string, opts driver.ExportOptions) error {
	if to == "-" {
		return sb.Files().Export(ctx, inside(from), a.Stdout, opts)
	}
	source := inside(from)
	isDir := isDirectory(ctx, sb.Files(), source)
	if strings.HasSuffix(from, "/") && !isDir {
		if _, err := sb.Files().Stat(ctx, source); err != nil {
			return err
		}
		return &sandbox.Error{Code: sandbox.CodeConflict, Subject: from, Message: "is not a directory"}
	}
	dir, name, err := localPlace(to, path.Base(source), isDir)
	if err != nil {
		return err
	}
	if isDir && isContent(from) && isLocalDir(to) {
		name = "."
	}
	r, w := io.Pipe()
	go func() { w.CloseWithError(sb.Files().Export(ctx, inside(from), w, opts)) }()
	skipped, err := tree.Unpack(ctx, r, dir, name)
	r.CloseWithError(err) // Export must not wait for a reader that is gone
	a.sayLeftOut(skipped)
	return err
}

// sayLeftOut warns of what cannot be copied.
func (a copyCommands) sayLeftOut(members []string) {
	for _, member := range members {
		a.Say("warning", "left out: "+term.OneLine(member, 200))
	}
}

// isContent reports whether a path names what is in a directory, as DIR/. does.
func isContent(p string) bool {
	return p == "." || strings.HasSuffix(p, "/.")
}

func isLocalDir(p string) bool {
	info, err := os.Stat(p)
	return err == nil && info.IsDir()
}

// localPlace returns the local directory to write to, and the name of the copy
// in it. A copy onto a link goes where the link leads.
func localPlace(to, base string, isDir bool) (dir, name string, err error) {
	if base == "/" {
		base = "root"
	}
	info, err := os.Stat(to)
	switch {
	case err == nil && info.IsDir():
		return to, base, nil
	case err == nil && isDir:
		return "", "", &sandbox.Error{Code: sandbox.CodeConflict, Subject: to, Message: "a directory cannot replace a file"}
	case err == nil:
		to, err = filepath.EvalSymlinks(to)
		return filepath.Dir(to), filepath.Base(to), err
	case !os.IsNotExist(err):
		return "", "", err
	case strings.HasSuffix(to, "/") && !isDir:
		return "", "", &sandbox.Error{Code: sandbox.CodeNotFound, Subject: to, Message: "no such directory", Hint: "make it first with: mkdir -p " + to}
	}
	to = filepath.Clean(to)
	if _, err := os.Lstat(to); err == nil {
		return "", "", brokenLink(to)
	}
	dir = filepath.Dir(to)
	if _, err := os.Stat(dir); err != nil {
		return "", "", &sandbox.Error{Code: sandbox.CodeNotFound, Subject: dir, Message: "no such directory", Hint: "make it first with: mkdir -p " + dir}
	}
	return dir, filepath.Base(to), nil
}

func brokenLink(name string) error {
	return &sandbox.Error{Code: sandbox.CodeConflict, Subject: name, Message: "is a link that leads nowhere", Hint: "remove it first, or copy to where it should lead"}
}

// copyIn copies a local file or tree into a sandbox.
func (a copyCommands) copyIn(ctx context.Context, sb target.Sandbox, from, to, owner string) error {
	files := sb.Files()
	opts := driver.ImportOptions{Owner: owner}
	if from == "-" {
		return files.Import(ctx, inside(to), a.Stdin, opts)
	}
	info, err := os.Stat(from)
	if err != nil {
		return &sandbox.Error{Code: sandbox.CodeNotFound, Subject: from, Message: "no such file or directory", Cause: err}
	}
	base, err := filepath.Abs(from)
	if err != nil {
		return err
	}
	dir, name, err := insidePlace(ctx, files, to, filepath.Base(base), info.IsDir())
	if err != nil {
		return err
	}
	if info.IsDir() && isContent(filepath.ToSlash(from)) && dir == inside(to) {
		name = "."
	}
	r, w := io.Pipe()
	packed := make(chan struct{})
	var skipped []string
	var failed error
	go func() {
		defer close(packed)
		skipped, failed = tree.Pack(ctx, w, base, name)
		w.CloseWithError(failed)
	}()
	err = files.Import(ctx, dir, r, opts)
	r.CloseWithError(io.ErrClosedPipe)
	<-packed
	a.sayLeftOut(skipped)
	if failed != nil && !errors.Is(failed, io.ErrClosedPipe) {
		return unread(from, failed) // rather than what the other end makes of it
	}
	return err
}

// unread names the file that could not be read. The system names it relative to
// its directory.
func unread(from string, err error) error {
	var p *fs.PathError
	if !errors.As(err, &p) {
		return err
	}
	message := p.Err.Error()
	if filepath.Base(p.Path) != filepath.Base(from) {
		message = p.Path + ": " + message
	}
	return &sandbox.Error{Code: sandbox.CodeOf(err), Subject: from, Message: message, Cause: err}
}

// insidePlace returns the directory inside to write to, and the name of the
// copy in it. A copy onto a link goes where the link leads.
func insidePlace(ctx context.Context, files target.Files, to, base string, isDir bool) (dir, name string, err error) {
	dest := inside(to)
	if isDirectory(ctx, files, dest) {
		return dest, base, nil
	}
	if strings.HasSuffix(to, "/") && !isDir {
		if _, err := files.Stat(ctx, dest); err == nil {
			return "", "", &sandbox.Error{Code: sandbox.CodeConflict, Subject: to, Message: "is not a directory"}
		}
		return dest, base, nil // Import makes it
	}
	for range maxLinks {
		info, err := files.Stat(ctx, dest)
		switch {
		case err == nil && isDir:
			return "", "", &sandbox.Error{Code: sandbox.CodeConflict, Subject: dest, Message: "a directory cannot replace a file"}
		case err != nil && !target.Missing(err):
			return "", "", err
		case err != nil && dest != inside(to):
			return "", "", brokenLink(inside(to))
		case err == nil && info.Type == sandbox.TypeSymlink:
			if dest = info.Target; !path.IsAbs(dest) {
				dest = path.Join(path.Dir(info.Path), dest)
			}
			continue
		}
		return path.Dir(dest), path.Base(dest), nil
	}
	return "", "", brokenLink(inside(to))
}

// maxLinks is how many links a path may lead through, as for Linux.
const maxLinks = 40

// isDirectory reports whether a path inside is a directory or a link to one.
// Only directories can be listed.
func isDirectory(ctx context.Context, files target.Files, p string) bool {
	for _, err := range files.List(ctx, p, driver.ListOptions{}) {
		return err == nil
	}
	return true
}
