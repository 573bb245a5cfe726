package envd

import (
	"encoding/hex"
	"strings"
)

// keyPrefix starts an API key in E2B's form. Lower-case hexadecimal digits
// follow.
const keyPrefix = "e2b_"

// Key converts an API key of Atoll to E2B's form. Both forms are equivalent.
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
