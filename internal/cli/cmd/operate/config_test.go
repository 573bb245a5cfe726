package operate

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/atoll-run/atoll/internal/cli/target"
	"github.com/atoll-run/atoll/sandbox"
)

func TestConfigFile(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"empty", "", ""},
		{"comments only", "# nothing\n", ""},
		{"values", "listen: 127.0.0.1:7070\nplain: true\nhost: [a.example, b.example]\naudit-keep: 90d\npool: 3\n", ""},
		{"the command line wins", "drain: 1h\n", ""},
		{"unknown", "listen: x\nport: 1\n", `atoll.yaml:2: there is no setting "port"`},
		{"not for a file", "detach: true\n", `there is no setting "detach"`},
		{"twice", "pool: 1\npool: 2\n", "pool is set twice"},
		{"nested", "listen: {address: x}\n", "listen takes a value"},
		{"bad value", "pool: many\n", "atoll.yaml:1: pool: "},
		{"a list", "- pool\n", "must be a list of settings"},
		{"not YAML", "a: [\n", "is not YAML"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "atoll.yaml")
			if err := os.WriteFile(file, []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := upCommands{Env: new(target.Env)}.upCmd()
			if err := cmd.Flags().Set("drain", "7s"); err != nil {
				t.Fatal(err)
			}
			err := applyConfig(cmd, file)
			if tt.want != "" {
				if sandbox.CodeOf(err) != sandbox.CodeInvalid || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("got %v, want %q", err, tt.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := cmd.Flag("drain").Value.String(); got != "7s" {
				t.Errorf("drain is %s: the file overrode the command line", got)
			}
			if tt.name == "values" {
				for flag, want := range map[string]string{"listen": "127.0.0.1:7070", "plain": "true", "host": "[a.example,b.example]", "pool": "3"} {
					if got := cmd.Flag(flag).Value.String(); got != want {
						t.Errorf("%s is %q, want %q", flag, got, want)
					}
				}
			}
		})
	}
	if err := applyConfig(upCommands{Env: new(target.Env)}.upCmd(), filepath.Join(t.TempDir(), "none")); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("a missing file: %v", err)
	}
}

// The sample configuration names every setting there is, and each line of it
// can be used.
func TestSampleConfig(t *testing.T) {
	text, err := os.ReadFile("../../../../docs/reference/atoll.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "#"); ok && !strings.HasPrefix(rest, " ") && rest != "\n" {
			line = rest // a setting that is commented out
		}
		lines = append(lines, line)
	}
	file := filepath.Join(t.TempDir(), "atoll.yaml")
	if err := os.WriteFile(file, []byte(strings.Join(lines, "")), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := upCommands{Env: new(target.Env)}.upCmd()
	if err := applyConfig(cmd, file); err != nil {
		t.Fatal(err)
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Changed && f.Name != "config" && f.Name != "detach" {
			t.Errorf("docs/reference/atoll.yaml does not name the setting %s", f.Name)
		}
	})
}
