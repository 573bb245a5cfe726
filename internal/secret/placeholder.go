package secret

import (
	"bytes"
	"crypto/rand"
	"strings"
)

// shapes are the beginnings by which programs recognise well-known tokens, and
// which say nothing about the rest.
var shapes = []string{
	"github_pat_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "glpat-", "sk-ant-api03-", "sk-proj-", "sk-", "xoxb-", "xoxp-", "xapp-",
	"sk_live_", "sk_test_", "rk_live_", "rk_test_", "hf_", "npm_", "pypi-", "AKIA", "ASIA", "AIza", "SG.", "dop_v1_", "key-", "r8_",
	"gsk_", "lin_api_", "ntn_", "secret_", "vercel_", "nvapi-",
}

const (
	letters     = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
	minRandom   = 32 // letters: nobody guesses a placeholder
	plainLength = 40
	maxShaped   = 200
)

// NewPlaceholder makes what a sandbox gets in place of a value: random, never
// the same twice, and of the same look if the value is a token of a well-known
// kind, so that programs which check that accept it. Of any other value it
// shows nothing, not even the length.
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
		_, _ = rand.Read(buf[:]) // never fails: it ends the program instead
		for _, c := range buf {
			// Every letter as likely as any other: the rest is thrown away.
			if int(c) < 256/len(letters)*len(letters) && b.Len() < n {
				b.WriteByte(letters[int(c)%len(letters)])
			}
		}
	}
	return b.String()
}
