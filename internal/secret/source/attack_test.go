package source_test

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/internal/secret/source"
)

// TestAttackHostileVault: a Vault, or an attacker in its place, tries to make
// the daemon send its token elsewhere, reveal it, use up its memory, or accept
// an invalid value as the secret.
func TestAttackHostileVault(t *testing.T) {
	const token = "canary-vault-token"
	var stolen atomic.Int64
	thief := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(fmt.Sprint(r.Header, r.URL), token) {
			stolen.Add(1)
		}
		_, _ = io.WriteString(w, `{"data":{"token":"from the thief"}}`)
	}))
	t.Cleanup(thief.Close)
	redirect := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, thief.URL+"/v1/kv/x", code) }
	}
	endless := func(w io.Writer, text string) {
		for range 256 << 20 / len(text) {
			if _, err := io.WriteString(w, text); err != nil {
				return
			}
		}
	}
	padding := strings.Repeat(" ", 1<<20)
	for name, h := range map[string]http.HandlerFunc{
		"301": redirect(301), "302": redirect(302), "303": redirect(303), "307": redirect(307), "308": redirect(308),
		"a meta refresh": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Refresh", "0; url="+thief.URL)
			_, _ = io.WriteString(w, `<meta http-equiv="refresh" content="0; url=`+thief.URL+`">`)
		},
		"an answer without end": func(w http.ResponseWriter, _ *http.Request) { endless(w, padding) },
		"a value without end": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"data":{"token":"`)
			endless(w, strings.Repeat("x", 1<<20))
		},
		"a bomb": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			endless(z, padding)
			_ = z.Close()
		},
		"deep JSON": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"data":{"token":`+strings.Repeat("[", 500_000)+"}}")
		},
		"the token in an error": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Echo", r.Header.Get("X-Vault-Token"))
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"errors":["permission denied for `+r.Header.Get("X-Vault-Token")+`"]}`)
		},
		"a list in place of text":   answering(`{"data":{"token":["` + canary + `"]}}`),
		"an object":                 answering(`{"data":{"token":{"token":"` + canary + `"}}}`),
		"another field":             answering(`{"data":{"other":"` + canary + `"}}`),
		"a field beside the data":   answering(`{"token":"` + canary + `","data":{}}`),
		"a field of the first kind": answering(`{"data":{"token":"` + canary + `","data":{"x":"y"},"metadata":{}}}`),
		"a wrapped answer":          answering(`{"data":null,"wrap_info":{"token":"` + canary + `"}}`),
		"nothing":                   answering(``),
		"an empty value":            answering(`{"data":{"token":""}}`),
		"a value that is too large": answering(`{"data":{"token":"` + strings.Repeat("x", secret.MaxValue+1) + `"}}`),
		"a deleted version":         answering(`{"data":{"data":null,"metadata":{"deletion_time":"2020-01-01"}}}`),
		"interim answers": func(w http.ResponseWriter, _ *http.Request) {
			for range 100 {
				w.WriteHeader(http.StatusEarlyHints)
			}
			w.WriteHeader(http.StatusNoContent)
		},
		"a connection that is cut": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(h)
			t.Cleanup(s.Close)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			r := &source.Reader{LookupEnv: lookup(map[string]string{"VAULT_ADDR": s.URL, "VAULT_TOKEN": token})}
			v, err := r.Read(t.Context(), parse(t, "vault:kv/x#token"))
			runtime.ReadMemStats(&after)
			hushed(t, name, err)
			if err == nil {
				t.Errorf("a value of %d bytes was taken", len(v.Reveal()))
			} else if strings.Contains(err.Error(), token) {
				t.Errorf("the error contains the token: %v", err)
			}
			if grown := int64(after.HeapSys) - int64(before.HeapSys); grown > 64<<20 {
				t.Errorf("memory grew by %d MiB", grown>>20)
			}
		})
	}
	if stolen.Load() > 0 {
		t.Errorf("the token was sent to another server %d times", stolen.Load())
	}
}

func answering(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
}

// TestAttackSilentVault: a Vault accepts connections and sends nothing, or a
// byte from time to time. Reading the secret can be canceled.
func TestAttackSilentVault(t *testing.T) {
	for name, say := range map[string]string{"nothing": "", "half a head": "HTTP/1.1 200 OK\r\nX: ", "half a body": "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				t.Cleanup(func() { _ = c.Close() })
				_, _ = io.WriteString(c, say)
			}
		}()
		r := &source.Reader{LookupEnv: lookup(map[string]string{"VAULT_ADDR": "http://" + l.Addr().String(), "VAULT_TOKEN": "the-token"})}
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		began := time.Now()
		_, err = r.Read(ctx, parse(t, "vault:kv/x#token"))
		cancel()
		hushed(t, name, err)
		if took := time.Since(began); took > source.Timeout {
			t.Errorf("%s kept the reader for %v", name, took)
		}
	}
}
