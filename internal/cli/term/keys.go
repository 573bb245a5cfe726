package term

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/spf13/pflag"
)

// defaultDetachKeys are Docker's detach keys.
const defaultDetachKeys = "ctrl-p,ctrl-q"

// ErrDetached says that the user pressed the keys that detach.
var ErrDetached = errors.New("detached")

// KeysFlag are the keys that detach, as the bytes that a terminal sends for them.
// It is empty for none. It satisfies pflag.Value.
type KeysFlag []byte

// Register registers the flag.
func (k *KeysFlag) Register(flags *pflag.FlagSet) {
	*k, _ = parseKeys(defaultDetachKeys)
	flags.Var(k, "detach-keys", `keys that leave a command on a terminal to itself: a letter, or ctrl- and a letter or one of @ [ \ ] ^ _, separated by commas, or none`)
}

func (k *KeysFlag) Set(text string) (err error) {
	*k = nil
	if text != "none" {
		*k, err = parseKeys(text)
	}
	return err
}

func (k *KeysFlag) String() string {
	words := make([]string, len(*k))
	for i, c := range *k {
		if words[i] = string(rune(c)); c < ' ' {
			words[i] = "ctrl-" + strings.ToLower(string(rune(c|0x40)))
		}
	}
	return strings.Join(words, ",")
}

func (k *KeysFlag) Type() string { return "keys" }

// parseKeys reads keys, such as ctrl-p,ctrl-q, as the bytes that a terminal sends
// for them.
func parseKeys(text string) ([]byte, error) {
	var keys []byte
	for _, key := range strings.Split(text, ",") {
		c, ctrl := strings.CutPrefix(key, "ctrl-")
		c = strings.ToLower(c)
		switch {
		case len(c) != 1 || c[0] <= ' ' || c[0] >= 0x7f:
			return nil, BadFlag("detach-keys", "%q is not a list of keys such as ctrl-p,ctrl-q", text)
		case ctrl && !(c[0] >= 'a' && c[0] <= 'z' || strings.Contains("@[\\]^_", c)):
			return nil, BadFlag("detach-keys", "there is no key ctrl-%s", c)
		case ctrl:
			keys = append(keys, c[0]&0x1f)
		default:
			keys = append(keys, key[0])
		}
	}
	return keys, nil
}

// KeyReader reads keys until the detach keys come, which end it. It holds back
// keys that may be the first of them.
type KeyReader struct {
	From   io.Reader
	Keys   []byte
	Leave  func() error // makes the command outlive us; after an error the keys go to it
	Cancel context.CancelCauseFunc
	held   int    // how many of keys were read
	ready  []byte // to be passed on
	end    error
}

func (r *KeyReader) Read(b []byte) (int, error) {
	for len(r.ready) == 0 {
		switch {
		case r.end == ErrDetached:
			r.Cancel(ErrDetached)
			return 0, r.end
		case r.end != nil:
			return 0, r.end
		}
		var in [512]byte
		n, err := r.From.Read(in[:])
		r.end = err
		for _, c := range in[:n] {
			if !r.take(c) {
				continue
			}
			if r.held = 0; r.Leave() == nil {
				r.end = ErrDetached
				break
			}
			r.ready = append(r.ready, r.Keys...)
		}
	}
	n := copy(b, r.ready)
	r.ready = r.ready[n:]
	return n, nil
}

// take reports whether a key was the last of those that detach.
func (r *KeyReader) take(c byte) bool {
	if c == r.Keys[r.held] {
		r.held++
		return r.held == len(r.Keys)
	}
	r.ready = append(r.ready, r.Keys[:r.held]...)
	if r.held = 0; c == r.Keys[0] {
		r.held = 1
		return len(r.Keys) == 1
	}
	r.ready = append(r.ready, c)
	return false
}
