// Package source reads values of secrets that are kept outside the store: in an
// environment variable of the daemon, in a file, in the output of a program, or
// in a Vault. Errors never contain the text that was read or the response of a
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

// Timeout is the time limit of one Read.
const Timeout = 15 * time.Second

// Reader reads values. The zero value has no variables, and so no Vault. It is
// safe for concurrent use.
type Reader struct {
	// LookupEnv looks up the daemon's environment variables, including VAULT_ADDR
	// and VAULT_TOKEN.
	LookupEnv func(string) (string, bool)
	// Transport is used for the Vault. Nil: the default transport, which also
	// trusts VAULT_CACERT.
	Transport http.RoundTripper
}

// Read returns the value of a source. The caller clears it.
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

var errNoValue = fmt.Errorf("the value is empty, or larger than %d bytes", secret.MaxValue)

// unavailable returns an error for why, which must be a message of this
// package.
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

// file reads a regular file of at most MaxValue bytes.
func file(_ context.Context, path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, errors.New("the file cannot be read")
	}
	if !info.Mode().IsRegular() { // reading a pipe could block
		return nil, errors.New("it is not a regular file")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, errors.New("the file cannot be read")
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, secret.MaxValue+3))
}
