package request

import (
	"strings"

	"github.com/spf13/pflag"

	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/sandbox"
)

// workspaceFlags say which workspaces a new sandbox gets.
type workspaceFlags struct {
	names              []string
	create             bool
	readOnly, writable []string
}

func (f *workspaceFlags) register(flags *pflag.FlagSet) {
	flags.StringArrayVar(&f.names, "workspace", nil, "attach this workspace at "+sandbox.WorkspaceDir+": NAME, NAME:ro to read only, or NAME:shared with others; may be repeated with a place for each, NAME[:ro|:shared]:/PATH; see: atoll workspace")
	flags.BoolVar(&f.create, "workspace-create", false, "make workspaces that do not exist")
	flags.StringArrayVar(&f.readOnly, "workspace-read-only", nil, "a directory below the workspace that cannot be written to; may be repeated")
	flags.StringArrayVar(&f.writable, "workspace-writable", nil, "the only directory below the workspace that can be written to; may be repeated")
}

func (f *workspaceFlags) spec() (all []sandbox.WorkspaceMount, err error) {
	if limited := len(f.readOnly)+len(f.writable) > 0; limited && len(f.names) != 1 {
		return nil, term.BadFlag("workspace", "is needed, and only one, to limit what can be written to it")
	}
	for _, text := range f.names {
		w, err := workspaceSpec(text)
		if err != nil {
			return nil, err
		}
		w.ReadOnly, w.Writable, w.Create = f.readOnly, f.writable, f.create
		all = append(all, w)
	}
	return all, nil
}

// workspaceSpec parses NAME[:MODE][:/PATH].
func workspaceSpec(text string) (w sandbox.WorkspaceMount, err error) {
	var mode string
	w.Name, mode, _ = strings.Cut(text, ":")
	if i := strings.Index(mode, "/"); i == 0 || i > 0 && mode[i-1] == ':' {
		mode, w.Path = strings.TrimSuffix(mode[:i], ":"), mode[i:]
	}
	switch mode {
	case "", "rw":
	case "ro":
		w.Mode = sandbox.WorkspaceRead
	case "shared":
		w.Mode = sandbox.WorkspaceShared
	default:
		return w, term.BadFlag("workspace", "%.80q is not NAME, NAME:ro or NAME:shared, each with an optional :/PATH", text)
	}
	return w, nil
}
