// Package source reads the values of secrets that are kept outside the store:
// in a variable of the daemon, in a file, behind a program, or in a Vault.
// Errors contain neither the text that was read nor the answer of a program or
// server, because either may be the secret.
package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/sandbox"
)

// Timeout bounds one reading.
const Timeout = 15 * time.Second

// Reader reads values. The zero value has no variables, and so no Vault. It may
// be used concurrently.
type Reader struct {
	// LookupEnv finds variables of the daemon, among them VAULT_ADDR and
	// VAULT_TOKEN.
	LookupEnv func(string) (string, bool)
	// Transport reaches the Vault. Nil: as this machine does, trusting
	// VAULT_CACERT too.
	Transport http.RoundTripper
}

// Read returns the value that a source leads to. The caller clears it.
func (r *Reader) Read(ctx context.Context, s secret.Source) (secret.Value, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	read := map[secret.Kind]func(context.Context, string) ([]byte, error){
		secret.FromEnv: r.variable, secret.File: file, secret.Command: r.command, secret.Vault: r.vault,
	}[s.Kind]
	if read == nil {
		return secret.Value{}, unavailable(s, errors.New("the value is kept in the store"))
	}
	raw, err := read(ctx, s.Ref)
	if err != nil {
		return secret.Value{}, unavailable(s, err)
	}
	v, err := secret.FromText(raw)
	if err != nil {
		clear(raw)
		return secret.Value{}, unavailable(s, errNoValue)
	}
	return v, nil
}

var errNoValue = fmt.Errorf("what is there is empty, or larger than %d bytes", secret.MaxValue)

// unavailable says what is wrong. Only messages of this package come here.
func unavailable(s secret.Source, why error) error {
	return &sandbox.Error{Code: sandbox.CodeUnavailable, Subject: s.String(), Message: why.Error(), Cause: why}
}

func (r *Reader) env(name string) (string, bool) {
	if r.LookupEnv == nil {
		return "", false
	}
	return r.LookupEnv(name)
}

func (r *Reader) variable(_ context.Context, name string) ([]byte, error) {
	v, ok := r.env(name)
	if !ok {
		return nil, errors.New("the daemon has no such variable")
	}
	return []byte(v), nil
}

// file reads a regular file that is not larger than a value may be.
func file(_ context.Context, path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, errors.New("the file cannot be read")
	}
	if !info.Mode().IsRegular() { // a pipe would keep us waiting
		return nil, errors.New("it is not a regular file")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, errors.New("the file cannot be read")
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, secret.MaxValue+3))
}
