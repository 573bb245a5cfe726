package cli

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/spf13/pflag"
)

// defaultDetachKeys are Docker's detach keys.
const defaultDetachKeys = "ctrl-p,ctrl-q"

// errDetached says that the user pressed the keys that detach.
var errDetached = errors.New("detached")

// keysFlag are the keys that detach, as the bytes that a terminal sends for them.
// It is empty for none. It satisfies pflag.Value.
type keysFlag []byte

func (k *keysFlag) register(flags *pflag.FlagSet) {
	*k, _ = parseKeys(defaultDetachKeys)
	flags.Var(k, "detach-keys", `keys that leave a command on a terminal to itself: a letter, or ctrl- and a letter or one of @ [ \ ] ^ _, separated by commas, or none`)
}

func (k *keysFlag) Set(text string) (err error) {
	*k = nil
	if text != "none" {
		*k, err = parseKeys(text)
	}
	return err
}

func (k *keysFlag) String() string {
	words := make([]string, len(*k))
	for i, c := range *k {
		if words[i] = string(rune(c)); c < ' ' {
			words[i] = "ctrl-" + strings.ToLower(string(rune(c|0x40)))
		}
	}
	return strings.Join(words, ",")
}

func (k *keysFlag) Type() string { return "keys" }

// parseKeys reads keys, such as ctrl-p,ctrl-q, as the bytes that a terminal sends
// for them.
func parseKeys(text string) ([]byte, error) {
	var keys []byte
	for _, key := range strings.Split(text, ",") {
		c, ctrl := strings.CutPrefix(key, "ctrl-")
		c = strings.ToLower(c)
		switch {
		case len(c) != 1 || c[0] <= ' ' || c[0] >= 0x7f:
			return nil, badFlag("detach-keys", "%q is not a list of keys such as ctrl-p,ctrl-q", text)
		case ctrl && !(c[0] >= 'a' && c[0] <= 'z' || strings.Contains("@[\\]^_", c)):
			return nil, badFlag("detach-keys", "there is no key ctrl-%s", c)
		case ctrl:
			keys = append(keys, c[0]&0x1f)
		default:
			keys = append(keys, key[0])
		}
	}
	return keys, nil
}

// keyReader reads keys until the detach keys come, which end it. It holds back
// keys that may be the first of them.
type keyReader struct {
	from   io.Reader
	keys   []byte
	leave  func() error // makes the command outlive us; after an error the keys go to it
	cancel context.CancelCauseFunc
	held   int    // how many of keys were read
	ready  []byte // to be passed on
	end    error
}

func (r *keyReader) Read(b []byte) (int, error) {
	for len(r.ready) == 0 {
		switch {
		case r.end == errDetached:
			r.cancel(errDetached)
			return 0, r.end
		case r.end != nil:
			return 0, r.end
		}
		var in [512]byte
		n, err := r.from.Read(in[:])
		r.end = err
		for _, c := range in[:n] {
			if !r.take(c) {
				continue
			}
			if r.held = 0; r.leave() == nil {
				r.end = errDetached
				break
			}
			r.ready = append(r.ready, r.keys...)
		}
	}
	n := copy(b, r.ready)
	r.ready = r.ready[n:]
	return n, nil
}

// take reports whether a key was the last of those that detach.
func (r *keyReader) take(c byte) bool {
	if c == r.keys[r.held] {
		r.held++
		return r.held == len(r.keys)
	}
	r.ready = append(r.ready, r.keys[:r.held]...)
	if r.held = 0; c == r.keys[0] {
		r.held = 1
		return len(r.keys) == 1
	}
	r.ready = append(r.ready, c)
	return false
}
