package secret

import (
	"bytes"
	"crypto/rand"
	"strings"
)

// shapes are prefixes of well-known tokens that reveal nothing about the rest.
var shapes = []string{
	"github_pat_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "glpat-", "sk-ant-api03-", "sk-proj-", "sk-", "xoxb-", "xoxp-", "xapp-",
	"sk_live_", "sk_test_", "rk_live_", "rk_test_", "hf_", "npm_", "pypi-", "AKIA", "ASIA", "AIza", "SG.", "dop_v1_", "key-", "r8_",
	"gsk_", "lin_api_", "ntn_", "secret_", "vercel_", "nvapi-",
}

const (
	letters     = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	minRandom   = 32 // letters, so that placeholders cannot be guessed
	plainLength = 40
	maxShaped   = 200
)

// NewPlaceholder returns a random placeholder for a value. If the value is a
// well-known kind of token, the placeholder has the same prefix and form, so
// that programs which check it accept it. For other values it reveals nothing,
// not even the length.
func NewPlaceholder(v Value) string {
	prefix, length := "", plainLength
	for _, s := range shapes {
		if bytes.HasPrefix(v.Reveal(), []byte(s)) {
			prefix, length = s, min(v.Len(), maxShaped)
			break
		}
	}
	return prefix + random(max(length-len(prefix), minRandom))
}

// random returns n letters and digits.
func random(n int) string {
	var b strings.Builder
	b.Grow(n)
	var buf [64]byte
	for b.Len() < n {
		_, _ = rand.Read(buf[:]) // never fails: it crashes the program instead
		for _, c := range buf {
			// Discard bytes that would make some letters more likely than others.
			if int(c) < 256/len(letters)*len(letters) && b.Len() < n {
				b.WriteByte(letters[int(c)%len(letters)])
			}
		}
	}
	return b.String()
}
