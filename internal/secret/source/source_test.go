package source_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/internal/secret/source"
	"github.com/atoll-run/atoll/sandbox"
)

const canary = "canary-value-0451"

func parse(t *testing.T, text string) secret.Source {
	t.Helper()
	s, err := secret.ParseSource(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func script(t *testing.T, body string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func lookup(env map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := env[name]; return v, ok }
}

// hushed wants an error of a code that says nothing of the value.
func hushed(t *testing.T, what string, err error) {
	t.Helper()
	if sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("%s: %v", what, err)
	}
	for e := err; e != nil; e = errors.Unwrap(e) {
		if strings.Contains(e.Error(), canary) {
			t.Errorf("%s: the error shows the value: %v", what, e)
		}
	}
}

func TestRead(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "value")
	if err := os.WriteFile(file, []byte(canary+"\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	r := &source.Reader{LookupEnv: lookup(map[string]string{"TOKEN": canary, "EMPTY": "", "PATH": os.Getenv("PATH"), "HOME": dir})}
	for _, good := range []string{
		"env:TOKEN", "file:" + file, "command:" + script(t, "echo "+canary), "command:" + script(t, `printf %s "$1-$2"`) + " canary-value  0451",
		"command:" + script(t, `[ -z "$TOKEN" ] && [ "$HOME" ] && echo `+canary),
	} {
		v, err := r.Read(t.Context(), parse(t, good))
		if err != nil || string(v.Reveal()) != canary {
			t.Errorf("%s: %q %v", good, v.Reveal(), err)
		}
	}
	for _, bad := range []string{
		"env:OTHER", "env:EMPTY", "file:" + filepath.Join(dir, "none"), "file:" + dir, "file:" + fifo, "command:" + filepath.Join(dir, "none"),
		"command:" + script(t, "echo "+canary+"; echo "+canary+" >&2; exit 3"), "command:" + script(t, "head -c 70000 /dev/zero"), "command:" + script(t, ":"),
		"vault:secret/data/x#token", "",
	} {
		_, err := r.Read(t.Context(), parse(t, bad))
		hushed(t, bad, err)
	}
	_, err := (&source.Reader{}).Read(t.Context(), parse(t, "env:TOKEN"))
	hushed(t, "a reader without variables", err)
}

// A program that hangs is ended with everything that it started.
func TestCommandEnds(t *testing.T) {
	pidFile := filepath.Join(t.TempDir(), "pid")
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	program := script(t, "sleep 1000 & echo $! > "+pidFile+".new && mv "+pidFile+".new "+pidFile+"; wait")
	go func() {
		_, err := (&source.Reader{LookupEnv: os.LookupEnv}).Read(ctx, parse(t, "command:"+program))
		failed <- err
	}()
	var raw []byte
	for raw == nil {
		raw, _ = os.ReadFile(pidFile)
		time.Sleep(time.Millisecond)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	hushed(t, "a program that hangs", <-failed)
	for running(pid) {
		time.Sleep(time.Millisecond)
	}
}

func running(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	_, rest, _ := strings.Cut(string(stat), ") ")
	return err == nil && !strings.HasPrefix(rest, "Z")
}

// vaultServer answers as the key-value engines of Vault do.
func vaultServer(t *testing.T) *httptest.Server {
	answers := map[string]any{
		"/v1/secret/data/github": map[string]any{"data": map[string]any{"data": map[string]any{"token": canary, "n": 7}, "metadata": map[string]any{"version": 2}}},
		"/v1/kv/github":          map[string]any{"data": map[string]any{"token": canary, "data": "plain"}},
		"/v1/odd":                "text",
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		a, ok := answers[req.URL.Path]
		switch {
		case req.URL.Path == "/v1/away":
			http.Redirect(w, req, "http://"+req.Host+"/v1/kv/github", http.StatusTemporaryRedirect)
		case req.Header.Get("X-Vault-Token") != "the-token" || req.Method != http.MethodGet || req.Header.Get("X-Vault-Request") != "true":
			w.WriteHeader(http.StatusForbidden)
		case !ok:
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(canary))
		default:
			_ = json.NewEncoder(w).Encode(a)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func TestVault(t *testing.T) {
	s := vaultServer(t)
	env := map[string]string{"VAULT_ADDR": s.URL, "VAULT_TOKEN": "the-token"}
	read := func(ref string) (secret.Value, error) {
		return (&source.Reader{LookupEnv: lookup(env)}).Read(t.Context(), parse(t, "vault:"+ref))
	}
	works := func() {
		t.Helper()
		for _, ref := range []string{"secret/data/github#token", "kv/github#token"} {
			if v, err := read(ref); err != nil || string(v.Reveal()) != canary {
				t.Errorf("%s: %q %v", ref, v.Reveal(), err)
			}
		}
	}
	works()
	for _, ref := range []string{"secret/data/github#other", "secret/data/github#n", "kv/none#token", "odd#token", "away#token"} {
		_, err := read(ref)
		hushed(t, ref, err)
	}
	env["HOME"] = t.TempDir()
	delete(env, "VAULT_TOKEN")
	_, err := read("kv/github#token")
	hushed(t, "no token", err)
	if err := os.WriteFile(filepath.Join(env["HOME"], ".vault-token"), []byte("the-token\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	works()
	for _, addr := range []string{"", "http://vault.example", "ftp://127.0.0.1", "https://", "http://user:" + canary + "@127.0.0.1", "http://127.0.0.1:1"} {
		env["VAULT_ADDR"] = addr
		_, err := read("kv/github#token")
		hushed(t, addr, err)
	}
}

func TestParseSource(t *testing.T) {
	for _, bad := range []string{"command:", "command:echo x", "command:/bin/echo\nx", "vault:", "vault:a", "vault:a#", "vault:../x#f", "vault:a//b#f", "vault:a/%2e%2e#f", "vault:a?b#f", "other:x"} {
		if _, err := secret.ParseSource(bad); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
