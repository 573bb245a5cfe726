//go:build e2b

package e2b

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/golang-jwt/jwt/v5"
)

// showIdentity is a service that trusts the daemon: it verifies the token of a
// request with OpenID Connect, and answers with the claims.
func showIdentity(w http.ResponseWriter, r *http.Request) {
	_, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	claims := jwt.MapClaims{}
	_, err := jwt.ParseWithClaims(token, claims, func(t *jwt.Token) (any, error) {
		issuer, err := claims.GetIssuer()
		if err != nil {
			return nil, err
		}
		return publishedKey(r.Context(), issuer, t.Header["kid"])
	}, jwt.WithValidMethods([]string{"ES256"}), jwt.WithAudience(r.URL.Query().Get("audience")), jwt.WithExpirationRequired())
	if err != nil {
		fmt.Fprintf(w, `{"error":%q}`, err)
		return
	}
	_ = json.NewEncoder(w).Encode(claims)
}

// publishedKey asks the issuer for a key. Its name leads to this machine.
func publishedKey(ctx context.Context, issuer string, id any) (*ecdsa.PublicKey, error) {
	at, err := url.Parse(issuer)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // the certificate is not part of the test
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", at.Port()))
		},
	}
	defer transport.CloseIdleConnections()
	get := func(from string, into any) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, from, http.NoBody)
		if err != nil {
			return err
		}
		resp, err := transport.RoundTrip(r)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		return json.NewDecoder(resp.Body).Decode(into)
	}
	var told struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	if err := get(issuer+"/.well-known/openid-configuration", &told); err != nil || told.Issuer != issuer {
		return nil, fmt.Errorf("the issuer says %+v, %w", told, err)
	}
	var set struct {
		Keys []struct{ Kid, X, Y string } `json:"keys"`
	}
	if err := get(told.Keys, &set); err != nil {
		return nil, err
	}
	for _, k := range set.Keys {
		if k.Kid == id {
			point, err := base64.RawURLEncoding.DecodeString(k.X)
			if err != nil {
				return nil, err
			}
			y, err := base64.RawURLEncoding.DecodeString(k.Y)
			if err != nil {
				return nil, err
			}
			return ecdsa.ParseUncompressedPublicKey(elliptic.P256(), append(append([]byte{4}, point...), y...))
		}
	}
	return nil, fmt.Errorf("no key %v is published", id)
}
