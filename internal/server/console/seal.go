package console

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"net/http"
	"strings"
)

const (
	// cookieName is the cookie that holds a sealed API key.
	cookieName = "atoll_console"
	// headerName is the header with the page's half of the credentials.
	headerName = "Atoll-Console"
	// protocolPrefix begins the subprotocol that has the page's half, for
	// WebSockets, whose headers a page cannot set.
	protocolPrefix = "atoll.console."

	halfSize = 32
	maxValue = 1 << 10
)

// seal encrypts an API key with a new random key, the half. The result is the
// value of the cookie. Neither is of use without the other: a browser sends a
// cookie to every port of a host, so a server on another port of this machine,
// such as a forwarded port of a sandbox, receives it too.
func seal(token string) (cookie, half string) {
	key := make([]byte, halfSize)
	_, _ = rand.Read(key) // never fails
	return base64.RawURLEncoding.EncodeToString(aead(key).Seal(nil, nil, []byte(token), []byte(cookieName))),
		base64.RawURLEncoding.EncodeToString(key)
}

var errSealed = errors.New("the cookie does not belong to this page")

// unseal returns the API key that seal got.
func unseal(cookie, half string) (string, error) {
	if len(cookie) > maxValue || len(half) > maxValue {
		return "", errSealed
	}
	key, err := base64.RawURLEncoding.DecodeString(half)
	if err != nil || len(key) != halfSize {
		return "", errSealed
	}
	sealed, err := base64.RawURLEncoding.DecodeString(cookie)
	if err != nil {
		return "", errSealed
	}
	token, err := aead(key).Open(nil, nil, sealed, []byte(cookieName))
	if err != nil {
		return "", errSealed
	}
	return string(token), nil
}

func aead(key []byte) cipher.AEAD {
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err) // cannot happen: the key has a valid size
	}
	c, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err) // cannot happen: AES has the block size of GCM
	}
	return c
}

// Token returns the API key with which a signed-in page makes a request; empty
// if there is none. It needs both halves: the cookie, and the header or the
// subprotocol.
func Token(r *http.Request) string {
	half := r.Header.Get(headerName)
	if half == "" {
		half = offered(r)
	}
	c, err := r.Cookie(cookieName)
	if half == "" || err != nil {
		return ""
	}
	token, err := unseal(c.Value, half)
	if err != nil {
		return ""
	}
	return token
}

// offered returns the half among the subprotocols that a WebSocket offers.
func offered(r *http.Request) string {
	for _, line := range r.Header.Values("Sec-WebSocket-Protocol") {
		for p := range strings.SplitSeq(line, ",") {
			if half, ok := strings.CutPrefix(strings.TrimSpace(p), protocolPrefix); ok {
				return half
			}
		}
	}
	return ""
}
