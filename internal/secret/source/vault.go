package source

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// maxAnswer is the maximum size of a Vault response in bytes.
const maxAnswer = 1 << 20

// vault reads one field of a secret through the HTTP API of Vault, which
// OpenBao supports too. Address and token come from the same variables that
// Vault's own tools read. Both versions of the key-value engine are supported.
func (r *Reader) vault(ctx context.Context, ref string) ([]byte, error) {
	path, field, _ := strings.Cut(ref, "#")
	req, err := r.vaultRequest(ctx, path)
	if err != nil {
		return nil, err
	}
	transport, err := r.vaultTransport()
	if err != nil {
		return nil, err
	}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse // do not send the token to another server
	}}
	resp, err := client.Do(req)
	if err != nil {
		return nil, errors.New("the Vault at VAULT_ADDR does not respond")
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the Vault responded with status %d", resp.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	defer clear(body)
	if err != nil {
		return nil, errors.New("the response of the Vault is incomplete")
	}
	return fieldOf(body, field)
}

func (r *Reader) vaultRequest(ctx context.Context, path string) (*http.Request, error) {
	addr, _ := r.env("VAULT_ADDR")
	u, err := url.Parse(addr)
	if err != nil || addr == "" || u.Host == "" || u.User != nil {
		return nil, errors.New("VAULT_ADDR of the daemon is not the address of a Vault")
	}
	if ip := net.ParseIP(u.Hostname()); u.Scheme != "https" && (u.Scheme != "http" || u.Hostname() != "localhost" && !ip.IsLoopback()) {
		return nil, errors.New("VAULT_ADDR of the daemon is neither https nor on this machine")
	}
	token, err := r.vaultToken()
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.JoinPath("v1", path).String(), nil)
	if err != nil {
		return nil, errors.New("VAULT_ADDR of the daemon is not the address of a Vault")
	}
	req.Header.Set("X-Vault-Token", token)
	req.Header.Set("X-Vault-Request", "true") // Vault Agent requires it
	if ns, _ := r.env("VAULT_NAMESPACE"); ns != "" {
		req.Header.Set("X-Vault-Namespace", ns)
	}
	return req, nil
}

// vaultToken returns VAULT_TOKEN, or the token that `vault login` stored.
func (r *Reader) vaultToken() (string, error) {
	if t, _ := r.env("VAULT_TOKEN"); t != "" {
		return t, nil
	}
	home, _ := r.env("HOME")
	raw, err := os.ReadFile(filepath.Join(home, ".vault-token"))
	if t := strings.TrimSpace(string(raw)); home != "" && err == nil && t != "" {
		return t, nil
	}
	return "", errors.New("the daemon has neither VAULT_TOKEN nor ~/.vault-token")
}

func (r *Reader) vaultTransport() (http.RoundTripper, error) {
	if r.Transport != nil {
		return r.Transport, nil
	}
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DisableKeepAlives = true
	file, _ := r.env("VAULT_CACERT")
	if file == "" {
		return t, nil
	}
	pool := x509.NewCertPool()
	if pem, err := os.ReadFile(file); err != nil || !pool.AppendCertsFromPEM(pem) {
		return nil, errors.New("VAULT_CACERT of the daemon contains no certificate")
	}
	t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	return t, nil
}

// fieldOf returns a field of a response of either version of the engine.
func fieldOf(body []byte, field string) ([]byte, error) {
	var answer struct {
		Data map[string]json.RawMessage `json:"data"`
	}
	if json.Unmarshal(body, &answer) != nil {
		return nil, errors.New("the response of the Vault is not a secret")
	}
	fields := answer.Data
	if inner, versioned := fields["data"]; versioned && fields["metadata"] != nil {
		fields = nil
		if json.Unmarshal(inner, &fields) != nil {
			return nil, errors.New("the response of the Vault is not a secret")
		}
	}
	var text string
	raw, ok := fields[field]
	if !ok || json.Unmarshal(raw, &text) != nil {
		return nil, fmt.Errorf("the secret in the Vault has no text field %q", field)
	}
	return []byte(text), nil
}
