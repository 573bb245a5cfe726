package key

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"hash/crc32"
	"regexp"
	"strings"
)

// A key is atoll_ID_SECRETCHECK in base 62: a public ID by which the key is
// found, a secret of 256 bits, and a checksum of everything before it. With the
// fixed prefix and the checksum, a secret scanner can recognize leaked keys
// offline, without false positives.
const (
	prefix    = "atoll_"
	idLen     = 12 // 71 bits, so collisions do not occur
	secretLen = 43 // 256 bits
	checkLen  = 6  // CRC-32
	tokenLen  = len(prefix) + idLen + 1 + secretLen + checkLen

	alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)

// Pattern matches text that may contain a key; use [Looks] to verify a match.
var Pattern = regexp.MustCompile(fmt.Sprintf(`\b%s[0-9A-Za-z]{%d}_[0-9A-Za-z]{%d}\b`, prefix, idLen, secretLen+checkLen))

// Looks reports whether s has the form of a key, including the checksum. It
// does not check whether the key is valid.
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

// newToken creates a key.
func newToken() (token, id string) {
	id = random(idLen)
	body := prefix + id + "_" + random(secretLen)
	return body + checksum(body), id
}

// random returns n characters, uniformly distributed.
func random(n int) string {
	out := make([]byte, 0, n)
	var buf [64]byte
	for {
		// Never fails: the program crashes if the system has no random numbers.
		_, _ = rand.Read(buf[:])
		for _, b := range buf {
			// 248 is a multiple of 62; larger bytes would skew the distribution.
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

// hash returns the stored hash of a key. One round of SHA-256 is enough.
// Passwords need a slow hash, but 256 random bits cannot be guessed.
func hash(token string) []byte {
	h := sha256.Sum256([]byte("atoll key v1\x00" + token))
	return h[:]
}
