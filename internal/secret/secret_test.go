package secret

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

const canary = "canary-7f3a/9+Z=\"<é>"

// However a value is shown, it does not show.
func TestValueHides(t *testing.T) {
	v := NewValue([]byte(canary))
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "v", v, "p", &v, "in", map[string]Value{"k": v}, "s", struct{ V Value }{v})
	doc, err := json.Marshal(map[string]any{"v": v, "p": &v, "s": struct{ V Value }{v}})
	if err != nil {
		t.Fatal(err)
	}
	shown := log.String() + string(doc)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%o", "%b", "%U", "%c", "%p"} {
		shown += fmt.Sprintf(verb, v) + fmt.Sprintf(verb, &v) + fmt.Sprintf(verb, struct{ V Value }{v}) + fmt.Sprintf(verb, []Value{v})
	}
	for _, form := range append(Forms(v), []byte("99 97 110 97 114 121"), []byte("0x63, 0x61, 0x6e")) {
		if strings.Contains(shown, string(form)) {
			t.Errorf("%q is shown", form)
		}
	}
	v.Clear()
	if strings.Contains(string(v.Reveal()), "canary") {
		t.Error("clearing does not clear")
	}
}

func TestSeal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret.key")
	s, err := OpenSealer(path)
	if err != nil {
		t.Fatal(err)
	}
	owner := Owner{Tenant: "acme", Name: "token", Version: 3}
	sealed, err := s.Seal(owner, NewValue([]byte(canary)))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(sealed), "canary") {
		t.Error("sealed in the clear")
	}
	twice, _ := s.Seal(owner, NewValue([]byte(canary)))
	if string(twice) == string(sealed) {
		t.Error("the same value looks the same twice")
	}
	again, err := OpenSealer(path)
	if err != nil {
		t.Fatal(err)
	}
	if v, err := again.Open(owner, s.KeyID(), sealed); err != nil || string(v.Reveal()) != canary {
		t.Errorf("%v %v", v, err)
	}
	refused := func(what string, s *Sealer, o Owner, id string, sealed []byte) {
		t.Helper()
		v, err := s.Open(o, id, sealed)
		if sandbox.CodeOf(err) != sandbox.CodeUnavailable || v.Len() != 0 {
			t.Errorf("%s: %v", what, err)
		}
	}
	other, err := OpenSealer(filepath.Join(t.TempDir(), "k"))
	if err != nil {
		t.Fatal(err)
	}
	refused("another key", other, owner, s.KeyID(), sealed)
	refused("another key under this one's name", other, owner, other.KeyID(), sealed)
	refused("another tenant", s, Owner{"rival", "token", 3}, s.KeyID(), sealed)
	refused("another name", s, Owner{"acme", "tokens", 3}, s.KeyID(), sealed)
	refused("another version", s, Owner{"acme", "token", 2}, s.KeyID(), sealed)
	refused("cut short", s, owner, s.KeyID(), sealed[:len(sealed)-1])
	refused("nothing", s, owner, s.KeyID(), nil)
	for i := range sealed {
		bad := append([]byte(nil), sealed...)
		bad[i] ^= 1
		refused("a flipped bit", s, owner, s.KeyID(), bad)
	}
}

func TestKeyFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "secret.key")
	first, err := OpenSealer(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v %v", info.Mode(), err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".secret*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	bad := func(what string, prepare func(path string) error) {
		t.Helper()
		p := filepath.Join(t.TempDir(), "k")
		if err := prepare(p); err != nil {
			t.Fatal(err)
		}
		_, err := OpenSealer(p)
		if sandbox.CodeOf(err) != sandbox.CodeUnavailable || strings.Contains(err.Error(), string(text[:16])) {
			t.Errorf("%s: %v", what, err)
		}
	}
	bad("open to others", func(p string) error {
		return errors.Join(os.WriteFile(p, text, 0o600), os.Chmod(p, 0o640))
	})
	bad("empty", func(p string) error { return os.WriteFile(p, nil, 0o600) })
	bad("short", func(p string) error { return os.WriteFile(p, text[:40], 0o600) })
	bad("long", func(p string) error { return os.WriteFile(p, append([]byte("00"), text...), 0o600) })
	bad("a link", func(p string) error { return os.Symlink(path, p) })
	bad("a directory", func(p string) error { return os.Mkdir(p, 0o700) })
	bad("nowhere", func(p string) error { return os.Symlink("/nowhere", p) })
	// Two daemons that start at once agree.
	shared := filepath.Join(t.TempDir(), "k")
	ids := make(chan string, 8)
	for range cap(ids) {
		go func() {
			s, err := OpenSealer(shared)
			if err != nil {
				t.Error(err)
				ids <- ""
				return
			}
			ids <- s.KeyID()
		}()
	}
	want := <-ids
	for range cap(ids) - 1 {
		if got := <-ids; got != want || got == first.KeyID() {
			t.Errorf("keys %q and %q", got, want)
		}
	}
}

func TestSource(t *testing.T) {
	path := filepath.Join(t.TempDir(), "value")
	if err := os.WriteFile(path, []byte(canary+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"env:TOKEN", "file:" + path, "command:/bin/x y", "vault:secret/data/x#token", ""} {
		if src, err := ParseSource(s); err != nil || src.String() != s {
			t.Errorf("%q: %+v %v", s, src, err)
		}
	}
	for _, s := range []string{"env:", "env:A=B", "file:relative", "file:", "command:id", "stored:x", "x"} {
		if _, err := ParseSource(s); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%q: %v", s, err)
		}
	}
}

func TestPlaceholder(t *testing.T) {
	seen := map[string]bool{}
	for _, tt := range []struct{ value, prefix string }{
		{"ghp_" + strings.Repeat("a", 36), "ghp_"},
		{"sk-ant-api03-" + strings.Repeat("b", 80), "sk-ant-api03-"},
		{"AKIAIOSFODNN7EXAMPLE", "AKIA"},
		{"hunter2", ""},
		{"correct-horse_battery", ""},
		{"sk-x", "sk-"},
		{"", ""},
	} {
		for range 50 {
			p := NewPlaceholder(NewValue([]byte(tt.value)))
			rest := strings.TrimPrefix(p, tt.prefix)
			if !strings.HasPrefix(p, tt.prefix) || len(rest) < minRandom || seen[p] || strings.Trim(rest, letters) != "" {
				t.Errorf("%q for %q", p, tt.value)
			}
			if tt.prefix != "" && len(tt.value) > len(tt.prefix)+minRandom && len(p) != len(tt.value) {
				t.Errorf("%q is not as long as %q", p, tt.value)
			}
			seen[p] = true
		}
	}
}

func TestScrubberInName(t *testing.T) {
	s := NewScrubber(NewValue([]byte("Canary-Value-0451")))
	for name, want := range map[string]bool{
		"Canary-Value-0451": true, "canary-value-0451": true, "X-CANARY-VALUE-0451-Y": true,
		"Y2FuYXJ5LXZhbHVlLTA0NTE": false, "Q2FuYXJ5LVZhbHVlLTA0NTE": true, "q2fuyxj5lvzhbhvlLTA0NTE": true, "X-Canary": false, "": false,
	} {
		if got := s.InName(name); got != want {
			t.Errorf("%q: %v, want %v", name, got, want)
		}
	}
}
