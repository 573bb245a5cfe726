package identity

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync"
)

// stretching makes it slow to guess the key of a fingerprint, which is public.
const stretching = 1 << 16

var (
	mu    sync.Mutex
	known = map[[sha256.Size]byte]string{}
)

// Local identifies an account at an address within the directory named scope,
// by a secret or by the secret's source.
func Local(address *url.URL, scope, account string) string {
	base := strings.TrimSuffix(address.String(), "/")
	mac := hmac.New(sha256.New, []byte(scope))
	mac.Write([]byte(base + "\n" + account))
	return base + "#" + hex.EncodeToString(mac.Sum(nil)[:8])
}

// Account identifies the account of a key at an address, in any directory: by
// the address and a fingerprint from which the key cannot be derived. The key
// must not be empty.
func Account(address *url.URL, key string) string {
	base := strings.TrimSuffix(address.String(), "/")
	salt := base
	ip, _ := netip.ParseAddr(address.Hostname())
	if address.Hostname() == "localhost" || ip.IsLoopback() {
		machine, _ := os.ReadFile("/etc/machine-id") // a loopback address means another server on other machines
		salt += "\n" + string(machine)
	}
	of := sha256.Sum256([]byte(salt + "\n" + key))
	mu.Lock()
	defer mu.Unlock()
	if known[of] == "" {
		sum, err := pbkdf2.Key(sha256.New, key, []byte(salt), stretching, 8)
		if err != nil { // only with invalid parameters
			panic(err)
		}
		known[of] = base + "#" + hex.EncodeToString(sum)
	}
	return known[of]
}
