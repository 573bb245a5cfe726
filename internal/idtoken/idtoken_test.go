package idtoken

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/atoll-run/atoll/sandbox"
)

const issuerURL = "https://api.box.test:8443"

func open(t *testing.T, file string, now func() time.Time) *Issuer {
	t.Helper()
	i, err := Open(file, now)
	if err != nil {
		t.Fatal(err)
	}
	i.Publish(issuerURL)
	return i
}

func issue(t *testing.T, i *Issuer) string {
	t.Helper()
	v, err := i.Token("acme", "sb-one", "sts.example.com")
	if err != nil {
		t.Fatal(err)
	}
	return string(v.Reveal())
}

// verify checks a token with nothing but what an issuer publishes.
func verify(t *testing.T, by *Issuer, token, audience string, now time.Time) (jwt.MapClaims, error) {
	t.Helper()
	keys, err := by.Keys()
	if err != nil || len(keys.Keys) != 1 {
		t.Fatalf("%+v %v", keys, err)
	}
	k := keys.Keys[0]
	x, errX := base64.RawURLEncoding.DecodeString(k.X)
	y, errY := base64.RawURLEncoding.DecodeString(k.Y)
	if errX != nil || errY != nil || len(x) != 32 || len(y) != 32 || k.Type != "EC" || k.Curve != "P-256" || k.Algorithm != "ES256" {
		t.Fatalf("the key is published as %+v", k)
	}
	public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), append(append([]byte{4}, x...), y...))
	if err != nil {
		t.Fatal(err)
	}
	claims := jwt.MapClaims{}
	_, err = jwt.ParseWithClaims(token, claims, func(t *jwt.Token) (any, error) {
		if t.Header["kid"] != k.ID {
			return nil, jwt.ErrTokenUnverifiable
		}
		return public, nil
	}, jwt.WithValidMethods([]string{"ES256"}), jwt.WithAudience(audience), jwt.WithIssuer(issuerURL), jwt.WithExpirationRequired(), jwt.WithTimeFunc(func() time.Time { return now }))
	return claims, err
}

func TestTokensAreVerifiedWithThePublishedKey(t *testing.T) {
	now := time.Now()
	i := open(t, filepath.Join(t.TempDir(), "key"), func() time.Time { return now })
	token := issue(t, i)
	claims, err := verify(t, i, token, "sts.example.com", now)
	if err != nil || claims["sub"] != "spiffe://api.box.test/tenant/acme/sandbox/sb-one" || claims["tenant"] != "acme" || claims["sandbox"] != "sb-one" {
		t.Errorf("%v %v", claims, err)
	}
	if _, err := verify(t, i, token, "other.example.com", now); err == nil {
		t.Error("it is good for another audience")
	}
	if _, err := verify(t, i, token, "sts.example.com", now.Add(Life+time.Second)); err == nil {
		t.Error("it is good after its end")
	}
	if Renewal >= Life/2 {
		t.Error("one renewal that fails leaves sandboxes without a token")
	}
	body, signature := token[:strings.LastIndex(token, ".")], token[strings.LastIndex(token, "."):]
	forged, err := jwt.NewWithClaims(jwt.SigningMethodNone, jwt.MapClaims{"sub": "spiffe://api.box.test/tenant/rival/sandbox/sb-two", "aud": "sts.example.com"}).SignedString(jwt.UnsafeAllowNoneSignatureType)
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{body + ".", forged, forged[:len(forged)-1] + signature} {
		if _, err := verify(t, i, bad, "sts.example.com", now); err == nil {
			t.Errorf("%q is good", bad)
		}
	}
	if issue(t, i) == token {
		t.Error("two tokens are the same")
	}
	d, err := i.Discovery()
	if err != nil || d.Issuer != issuerURL || d.Keys != issuerURL+KeysPath {
		t.Errorf("%+v %v", d, err)
	}
}

// The key survives a restart. Removing it invalidates all tokens.
func TestKeyIsKept(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	first := open(t, file, nil)
	token := issue(t, first)
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info, err)
	}
	if _, err := verify(t, open(t, file, nil), token, "sts.example.com", time.Now()); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	next := open(t, file, nil)
	if _, err := verify(t, next, token, "sts.example.com", time.Now()); err == nil {
		t.Error("the token of a key that was removed is good")
	}
	if _, err := verify(t, next, issue(t, next), "sts.example.com", time.Now()); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(file, []byte("canary"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(file, nil); sandbox.CodeOf(err) != sandbox.CodeUnavailable || strings.Contains(err.Error(), "canary") {
		t.Errorf("a key that is none: %v", err)
	}
}

func TestNoTokensWithoutAPlaceForTheKeys(t *testing.T) {
	i := open(t, filepath.Join(t.TempDir(), "key"), nil)
	i.Publish("")
	_, err := i.Token("acme", "sb-one", "a")
	_, err2 := i.Discovery()
	if sandbox.CodeOf(err) != sandbox.CodeUnsupported || sandbox.CodeOf(err2) != sandbox.CodeUnsupported {
		t.Errorf("%v %v", err, err2)
	}
}
