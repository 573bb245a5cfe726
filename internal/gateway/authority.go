package gateway

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

const (
	// caLife is longer than the life of any sandbox. The certificate is trusted
	// only inside its sandboxes.
	caLife = 5 * 365 * 24 * time.Hour
	// caRest is the remaining validity that an authority needs to be used for
	// another sandbox.
	caRest = caLife / 5

	keyName = "authorities.key"
	keySize = 32
)

// authority is a certificate authority of a sandbox and of all sandboxes
// restored or forked from it, so that programs that have loaded the certificate
// keep working. Its key is derived from a key of this machine and from the
// serial number of the certificate. The key is only in the memory of this
// process and of the gateway process, and in no snapshot. It can be derived
// again on the same machine from the certificate alone.
type authority struct {
	cert []byte // DER
	key  []byte // PKCS #8
	pem  []byte
}

// newAuthority creates an authority.
func newAuthority(master []byte, name string) (*authority, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	key, err := deriveKey(master, serial)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	t := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{Organization: []string{"Atoll"}, CommonName: "Atoll gateway of " + name},
		NotBefore:    now.Add(-24 * time.Hour), NotAfter: now.Add(caLife),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return withKey(der, key)
}

// formerAuthority returns the authority that a sandbox used before it was
// saved, from its certificate. It returns nil if the certificate is from
// another machine, about to expire or invalid: the contents of a snapshot are
// not trusted.
func formerAuthority(master, der []byte) *authority {
	cert, err := x509.ParseCertificate(der)
	if err != nil || !cert.IsCA || time.Until(cert.NotAfter) < caRest || time.Now().Before(cert.NotBefore) {
		return nil
	}
	key, err := deriveKey(master, cert.SerialNumber)
	if err != nil || !key.PublicKey.Equal(cert.PublicKey) || cert.CheckSignatureFrom(cert) != nil {
		return nil
	}
	a, err := withKey(cert.Raw, key)
	if err != nil {
		return nil
	}
	return a
}

// authorityFor returns the authority that a sandbox used before, or a new one.
func authorityFor(master []byte, name string, former []byte) (*authority, error) {
	if len(former) > 0 {
		if a := formerAuthority(master, former); a != nil {
			return a, nil
		}
	}
	return newAuthority(master, name)
}

func withKey(der []byte, key *ecdsa.PrivateKey) (*authority, error) {
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return &authority{cert: der, key: pkcs8, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}, nil
}

// deriveKey derives the key of the authority with a serial number. If the
// derived bytes are not a valid key, which happens with a probability of 2⁻³²,
// it tries the next ones.
func deriveKey(master []byte, serial *big.Int) (*ecdsa.PrivateKey, error) {
	for n := range 4 {
		raw, err := hkdf.Key(sha256.New, master, serial.Bytes(), "atoll certificate authority "+strconv.Itoa(n), keySize)
		if err != nil {
			return nil, err
		}
		if key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), raw); err == nil {
			return key, nil
		}
	}
	return nil, errors.New("no key can be derived")
}

// masterKey reads the key of this machine, and creates it if it does not exist.
// If several processes do so at once, all get the key that was written first.
func masterKey(dir string) ([]byte, error) {
	path := filepath.Join(dir, keyName)
	key, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err = makeMasterKey(dir, path); err == nil {
			key, err = os.ReadFile(path)
		}
	}
	if err != nil {
		return nil, err
	}
	if len(key) != keySize {
		return nil, &sandbox.Error{
			Code: sandbox.CodeUnavailable, Subject: path, Message: "the key of the gateway's authorities is damaged",
			Hint: "restore it from a backup of the state directory, or remove it: restored sandboxes then get a new authority",
		}
	}
	return key, nil
}

// makeMasterKey writes a key atomically, unless one exists.
func makeMasterKey(dir, path string) error {
	f, err := os.CreateTemp(dir, "."+keyName+"-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	key := make([]byte, keySize)
	_, _ = rand.Read(key) // never fails: it crashes the program instead
	_, err = f.Write(key)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}
