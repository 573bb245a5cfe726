package target

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/atoll-run/atoll/sandbox"
)

// LocalContext is the name of the daemon of the state directory.
const LocalContext = "local"

// DaemonContext is how to reach a daemon.
type DaemonContext struct {
	Host string `json:"host"`
	Key  string `json:"key,omitempty"`
}

// contexts are the daemons that the user has given names. They are kept in a file
// that only the user can read.
type contexts struct {
	Current string                   `json:"current,omitempty"` // empty: localContext
	Known   map[string]DaemonContext `json:"contexts"`

	path string
}

// contextFile is where they are kept.
func contextFile(a *Env) (string, error) {
	if dir, _ := a.LookupEnv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "atoll", "contexts.json"), nil
	}
	dir, err := os.UserConfigDir()
	return filepath.Join(dir, "atoll", "contexts.json"), err
}

// Contexts reads the file. Without one, or without a home, there are none.
func (e *Env) Contexts() (c contexts, err error) {
	c.Known = map[string]DaemonContext{}
	if c.path, err = contextFile(e); err != nil {
		return c, nil //nolint:nilerr // a user without a home has no contexts
	}
	text, err := os.ReadFile(c.path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err != nil {
		return c, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: c.path, Message: "cannot be read: " + err.Error(), Cause: err}
	}
	if c.Known == nil {
		c.Known = map[string]DaemonContext{}
	}
	return c, nil
}

// Save replaces the file.
func (c *contexts) Save() error {
	if c.path == "" {
		return &sandbox.Error{Code: sandbox.CodeUnsupported, Message: "contexts are stored in the home directory, and none is set"}
	}
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	dir := filepath.Dir(c.path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".contexts-") // for the user alone
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(append(text, '\n'))
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), c.path)
}

// Get returns a context by its name.
func (c *contexts) Get(name string) (DaemonContext, error) {
	d, ok := c.Known[name]
	if !ok && name != LocalContext {
		return d, &sandbox.Error{Code: sandbox.CodeNotFound, Subject: name, Message: "there is no such context", Hint: "see: atoll context ls"}
	}
	return d, nil
}

// ChosenContext is the name of the context that counts: $ATOLL_CONTEXT, else the one in use.
func ChosenContext(a *Env, c *contexts) string {
	if name, _ := a.LookupEnv("ATOLL_CONTEXT"); name != "" {
		return name
	}
	if c.Current != "" {
		return c.Current
	}
	return LocalContext
}

// NamedDaemon returns the address and key of the daemon that the user names:
// by $ATOLL_HOST, else by a context. An empty host is the daemon of the state
// directory. said is what named it.
func (e *Env) NamedDaemon() (d DaemonContext, said string, err error) {
	if d.Host, _ = e.LookupEnv("ATOLL_HOST"); d.Host != "" {
		d.Key, _ = e.LookupEnv("ATOLL_KEY")
		return d, "ATOLL_HOST", nil
	}
	all, err := e.Contexts()
	if err != nil {
		return d, "", err
	}
	name := ChosenContext(e, &all)
	if d, err = all.Get(name); err != nil || d.Host == "" {
		return d, "", err
	}
	if key, _ := e.LookupEnv("ATOLL_KEY"); key != "" {
		d.Key = key
	}
	return d, "the context " + name, nil
}
