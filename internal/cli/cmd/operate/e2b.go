package operate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/atoll-run/atoll/internal/cli/resource"
	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/internal/cli/term"
	"github.com/atoll-run/atoll/internal/envd"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// e2bCommands are atoll e2b.
type e2bCommands struct{ *target.Env }

func (a e2bCommands) e2bCmd() *cobra.Command {
	return resource.Parent(&cobra.Command{
		Use: "e2b", Short: "Use Atoll from programs that were written for E2B", GroupID: resource.GroupDaemon,
		Example: `  atoll e2b enable
  eval "$(atoll e2b env)"`,
	}, a.e2bEnableCmd(), a.e2bDisableCmd(), a.e2bEnvCmd())
}

func (a e2bCommands) e2bEnvCmd() *cobra.Command {
	var asJSON, admin bool
	var format string
	cmd := &cobra.Command{
		Use:   "env",
		Short: "Show the environment in which E2B's SDKs find this daemon",
		Long: `Env writes the variables that make E2B's SDKs for JavaScript and Python use this
daemon. The daemon must serve E2B's API; see: atoll e2b enable. Env makes an API key unless $ATOLL_KEY has
one. The key may read, run commands, and manage sandboxes, templates and volumes;
with --admin it may do everything in the tenant, including secrets. Where the daemon
signs its certificates itself, Env also makes Node, Python and curl trust them.`,
		Example: `  eval "$(atoll e2b env)"
  atoll e2b env --format fish | source
  atoll e2b env --format powershell | Out-String | Invoke-Expression
  atoll e2b env --format dotenv >.env`,
		Args: cobra.NoArgs,
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "write JSON")
	cmd.Flags().StringVar(&format, "format", "bash", "for whom: "+strings.Join(envFormatNames, ", "))
	cmd.Flags().BoolVar(&admin, "admin", false, "make a key that allows everything in the tenant; programs that create secrets need it")
	cmd.RunE = resource.Interruptible(func(ctx context.Context, _ []string) error {
		line, ok := envFormats[format]
		if !ok {
			return term.Usage(cmd, fmt.Errorf("--format is not one of %s", strings.Join(envFormatNames, ", ")))
		}
		verbs := []string{"read", "exec", "write"}
		if admin {
			verbs = []string{"admin"}
		}
		vars, err := a.e2bEnv(ctx, verbs)
		if err != nil {
			return err
		}
		if asJSON {
			out := map[string]string{}
			for _, v := range vars {
				out[v[0]] = v[1]
			}
			return a.PrintJSON(out)
		}
		for _, v := range vars {
			if err := a.Println(line(v[0], v[1])); err != nil {
				return err
			}
		}
		return nil
	})
	return cmd
}

// envFormats write a variable and its value.
var envFormats = map[string]func(name, value string) string{
	"bash": func(name, value string) string { return "export " + name + "=" + quoted(value, `'\''`) },
	"fish": func(name, value string) string { return "set -gx " + name + " " + quoted(value, `\'`) },
	"powershell": func(name, value string) string {
		return "$env:" + name + " = '" + strings.ReplaceAll(value, "'", "''") + "'"
	},
	"dotenv": func(name, value string) string { return name + "=" + quoted(value, `'\''`) },
}

var envFormatNames = slices.Sorted(maps.Keys(envFormats))

// quoted puts quotes around text with characters that are special in a shell
// something by. quote stands for a quote in it.
func quoted(value, quote string) string {
	if !strings.ContainsFunc(value, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_-./:@%+", r))
	}) {
		return value
	}
	return "'" + strings.ReplaceAll(value, "'", quote) + "'"
}

// e2bEnv returns names and values in the order in which they are shown.
func (a e2bCommands) e2bEnv(ctx context.Context, verbs []string) ([][2]string, error) {
	c, err := a.MustDaemon(ctx)
	if err != nil {
		return nil, err
	}
	place, err := a.e2bPlace()
	if err != nil {
		return nil, err
	}
	d, _, err := a.NamedDaemon()
	if err != nil {
		return nil, err
	}
	token := d.Key
	if token == "" && d.Host == "" {
		token, _ = a.LookupEnv("ATOLL_KEY")
	}
	if token == "" {
		k, err := c.Admin().CreateKey(ctx, operator.NewKey{Name: "e2b", Verbs: verbs})
		if err != nil {
			return nil, err
		}
		token = k.Token
	}
	vars := [][2]string{{"E2B_API_KEY", envd.Key(token)}}
	named := a.byName(ctx, &place)
	if named {
		vars = append(vars, [2]string{"E2B_DOMAIN", place.Domain})
	} else {
		vars = append(vars, [2]string{"E2B_API_URL", place.URL}, [2]string{"E2B_SANDBOX_URL", place.URL}, [2]string{"E2B_VOLUME_API_URL", place.URL})
	}
	if named && place.CA != "" {
		bundle := cmp.Or(place.Bundle, place.CA)
		vars = append(vars, [2]string{"NODE_EXTRA_CA_CERTS", place.CA}, // adds to what Node trusts; the others replace it
			[2]string{"SSL_CERT_FILE", bundle}, [2]string{"REQUESTS_CA_BUNDLE", bundle}, [2]string{"CURL_CA_BUNDLE", bundle})
	}
	return vars, nil
}

// byName reports whether programs are to reach sandboxes by name, and warns where
// names lead nowhere.
func (a e2bCommands) byName(ctx context.Context, place *e2bPlace) bool {
	if place.Domain == "" {
		a.Warn("without a domain, getHost() and get_host() return names in E2B's domain; see --domain of atoll e2b enable")
		return false
	}
	host := place.Domain
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	if _, err := net.DefaultResolver.LookupHost(ctx, "api."+host); err == nil {
		return true
	}
	if strings.HasPrefix(place.URL, "https:") {
		a.Warn("names below " + host + " cannot be looked up here; point *." + host + " in the DNS to this machine")
		return true
	}
	a.Warn("names below " + host + " cannot be looked up here, so programs get URLs instead, which newer SDKs call deprecated; " +
		"getHost() and get_host() return such names all the same. Use a domain of your own with: atoll up --e2b --e2b-domain DOMAIN")
	return false
}

// lookupTimeout is how long a name may take to be looked up.
const lookupTimeout = 3 * time.Second

// e2bPlace is the address of a daemon's E2B API, which the daemon stores in its
// state directory.
type e2bPlace struct {
	URL    string `json:"url"`
	Domain string `json:"domain,omitempty"`
	CA     string `json:"ca,omitempty"`     // file with the certificate to trust
	Bundle string `json:"bundle,omitempty"` // file with that authority and the machine's
}

func (a e2bCommands) e2bPlace() (p e2bPlace, err error) {
	text, err := os.ReadFile(filepath.Join(filepath.Dir(a.Socket()), "e2b.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return p, &sandbox.Error{
			Code: sandbox.CodeUnavailable, Op: "e2b.env", Message: "the daemon does not serve clients of E2B",
			Hint: "have it do so with: atoll e2b enable",
		}
	}
	if err != nil {
		return p, err
	}
	return p, json.Unmarshal(text, &p)
}
