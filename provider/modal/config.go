package modal

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/atoll-run/atoll/provider/internal/credential"
	"github.com/atoll-run/atoll/sandbox"
)

// complete adds what is set only in the configuration file. The token there
// counts only if no part of one is given.
func (o *Options) complete() error {
	if o.Config == "" || o.TokenID != "" || o.Key != nil && o.Key.Set() {
		return nil
	}
	text, err := os.ReadFile(o.Config)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "modal.open", Subject: o.Config, Message: "cannot be read", Cause: err}
	}
	values := profile(string(text), o.Profile)
	o.TokenID, o.Key = values["token_id"], credential.New(opening.Key, values["token_secret"], "", "")
	o.Environment, o.URL = cmp.Or(o.Environment, values["environment"]), cmp.Or(o.URL, values["server_url"])
	return nil
}

// profile returns the values of a section of a file in TOML: the one with a name
// or, without a name, the one that is active, or that is called default. Values
// that are no strings or words are ignored.
func profile(text, name string) map[string]string {
	sections := map[string]map[string]string{}
	at, active := "", "default"
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if head, ok := strings.CutPrefix(line, "["); ok {
			head, _, _ = strings.Cut(head, "]")
			at = strings.Trim(strings.TrimSpace(head), `"'`)
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		if sections[at] == nil {
			sections[at] = map[string]string{}
		}
		key = strings.TrimSpace(key)
		if value = word(strings.TrimSpace(value)); key == "active" && value == "true" {
			active = at
		}
		sections[at][key] = value
	}
	return sections[cmp.Or(name, active)]
}

// word returns a string or a word of TOML, without a comment after it.
func word(text string) string {
	if quoted, err := strconv.QuotedPrefix(text); err == nil {
		value, _ := strconv.Unquote(quoted)
		return value
	}
	if rest, ok := strings.CutPrefix(text, "'"); ok {
		value, _, _ := strings.Cut(rest, "'")
		return value
	}
	value, _, _ := strings.Cut(text, "#")
	return strings.TrimSpace(value)
}
