package envd

import (
	"encoding/hex"
	"strings"
)

// keyPrefix begins an API key as the SDKs take it: the rest are lower-case
// hexadecimal digits.
const keyPrefix = "e2b_"

// Key returns a key of Atoll as the SDKs take it. It is the same key, written
// otherwise.
func Key(token string) string {
	if strings.HasPrefix(token, keyPrefix) {
		return token
	}
	return keyPrefix + hex.EncodeToString([]byte(token))
}

// Token is the reverse of Key. Other text is returned unchanged.
func Token(key string) string {
	digits, ok := strings.CutPrefix(key, keyPrefix)
	token, err := hex.DecodeString(digits)
	if !ok || err != nil || Key(string(token)) != key {
		return key
	}
	return string(token)
}
