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

// stretching makes it slow to try keys against a fingerprint, which is no secret.
const stretching = 1 << 16

var (
	mu    sync.Mutex
	known = map[[sha256.Size]byte]string{}
)

// Local names an account at an address for one directory, whose name is scope, by
// a secret or by where one comes from.
func Local(address *url.URL, scope, account string) string {
	base := strings.TrimSuffix(address.String(), "/")
	mac := hmac.New(sha256.New, []byte(scope))
	mac.Write([]byte(base + "\n" + account))
	return base + "#" + hex.EncodeToString(mac.Sum(nil)[:8])
}

// Account names what a key gives access to at an address, for everybody who has
// both: the address, and a fingerprint that the key cannot be told from. The key
// is not empty.
func Account(address *url.URL, key string) string {
	base := strings.TrimSuffix(address.String(), "/")
	salt := base
	ip, _ := netip.ParseAddr(address.Hostname())
	if address.Hostname() == "localhost" || ip.IsLoopback() {
		machine, _ := os.ReadFile("/etc/machine-id") // the address leads elsewhere on other machines
		salt += "\n" + string(machine)
	}
	of := sha256.Sum256([]byte(salt + "\n" + key))
	mu.Lock()
	defer mu.Unlock()
	if known[of] == "" {
		sum, err := pbkdf2.Key(sha256.New, key, []byte(salt), stretching, 8)
		if err != nil { // only with parameters that it does not take
			panic(err)
		}
		known[of] = base + "#" + hex.EncodeToString(sum)
	}
	return known[of]
}
