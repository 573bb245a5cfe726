package key

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"hash/crc32"
	"regexp"
	"strings"
)

// A key is atoll_ID_SECRETCHECK in base 62: an ID that is no secret and by
// which the key is found, a secret of 256 bits, and a checksum of all that
// stands before it. The fixed beginning and the checksum let a scanner of
// source code tell a leaked key from something that looks like one, offline
// and without knowing any key.
const (
	prefix    = "atoll_"
	idLen     = 12 // 71 bits: no two keys meet
	secretLen = 43 // 256 bits
	checkLen  = 6  // CRC-32
	tokenLen  = len(prefix) + idLen + 1 + secretLen + checkLen

	alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)

// Pattern finds what may be a key in text; [Looks] tells whether it is one.
var Pattern = regexp.MustCompile(fmt.Sprintf(`\b%s[0-9A-Za-z]{%d}_[0-9A-Za-z]{%d}\b`, prefix, idLen, secretLen+checkLen))

// Looks reports whether s has the form of a key, its checksum included. It
// does not say that the key is valid.
func Looks(s string) bool {
	_, ok := idOf(s)
	return ok
}

// idOf returns the public part of a well-formed key.
func idOf(token string) (id string, ok bool) {
	if len(token) != tokenLen || !strings.HasPrefix(token, prefix) || token[len(prefix)+idLen] != '_' {
		return "", false
	}
	body, check := token[:tokenLen-checkLen], token[tokenLen-checkLen:]
	if checksum(body) != check {
		return "", false
	}
	id = token[len(prefix) : len(prefix)+idLen]
	return id, base62(id) && base62(token[len(prefix)+idLen+1:])
}

func base62(s string) bool {
	for i := range len(s) {
		if strings.IndexByte(alphabet, s[i]) < 0 {
			return false
		}
	}
	return true
}

// newToken makes a key.
func newToken() (token, id string) {
	id = random(idLen)
	body := prefix + id + "_" + random(secretLen)
	return body + checksum(body), id
}

// random returns n characters, each of which is equally likely.
func random(n int) string {
	out := make([]byte, 0, n)
	var buf [64]byte
	for {
		// It never fails: the program ends if the system has no random numbers.
		_, _ = rand.Read(buf[:])
		for _, b := range buf {
			// 248 is a multiple of 62; what lies above would favour some.
			if b >= 248 {
				continue
			}
			if out = append(out, alphabet[b%62]); len(out) == n {
				return string(out)
			}
		}
	}
}

func checksum(s string) string {
	n := uint64(crc32.ChecksumIEEE([]byte(s)))
	var out [checkLen]byte
	for i := len(out) - 1; i >= 0; i-- {
		out[i] = alphabet[n%62]
		n /= 62
	}
	return string(out[:])
}

// hash is the stored record of a key. A single round of SHA-256 is enough, where
// a password would need a slow hash: a secret of 256 random bits cannot be
// guessed however fast the guesses are.
func hash(token string) []byte {
	h := sha256.Sum256([]byte("atoll key v1\x00" + token))
	return h[:]
}
