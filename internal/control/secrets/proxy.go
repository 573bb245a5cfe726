package secrets

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/sandbox"
)

// SealProxy returns a network whose proxy password is encrypted. It does not
// change n. Call it before n is recorded.
func (s *Service) SealProxy(tenant string, n sandbox.Network) (sandbox.Network, error) {
	if n.Inline == nil {
		return n, nil
	}
	sealed, err := s.SealProfile(tenant, *n.Inline)
	n.Inline = &sealed
	return n, err
}

// SealProfile is SealProxy for a profile.
func (s *Service) SealProfile(tenant string, p sandbox.Profile) (sandbox.Profile, error) {
	if p.Proxy == nil || p.Proxy.Password == "" {
		return p, nil
	}
	proxy := *p.Proxy
	p.Proxy = &proxy
	v := secret.NewValue([]byte(proxy.Password))
	defer v.Clear()
	proxy.Password = ""
	var err error
	_, proxy.Sealed, err = s.seal(proxyOwner(tenant, proxy), v)
	return p, err
}

// OpenProxy returns the password of a proxy, empty if it has none. The caller
// clears the value.
func (s *Service) OpenProxy(tenant string, p *sandbox.UpstreamProxy) (secret.Value, error) {
	if p == nil || len(p.Sealed) == 0 {
		return secret.Value{}, nil
	}
	if s.cfg.Sealer == nil {
		return secret.Value{}, errNoSealer
	}
	return s.cfg.Sealer.Open(proxyOwner(tenant, *p), s.cfg.Sealer.KeyID(), p.Sealed)
}

// proxyOwner binds a password to its proxy, so that it cannot be decrypted for
// another one. No secret has such a name.
func proxyOwner(tenant string, p sandbox.UpstreamProxy) secret.Owner {
	p.Password, p.Sealed = "", nil
	text, _ := json.Marshal(p) // strings and flags
	sum := sha256.Sum256(text)
	return secret.Owner{Tenant: tenant, Name: "proxy " + hex.EncodeToString(sum[:])}
}
