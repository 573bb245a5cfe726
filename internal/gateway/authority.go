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
	// caLife is longer than any sandbox should live. An authority is worth
	// nothing outside its sandboxes.
	caLife = 5 * 365 * 24 * time.Hour
	// caRest is how long an authority has to be valid for another sandbox to
	// begin with it.
	caRest = caLife / 5

	keyName = "authorities.key"
	keySize = 32
)

// authority is a certificate authority of a sandbox and of all that is restored
// or forked from it, so that programs which loaded it into their memory go on
// with what they know. Its key is derived from a key of this machine and from
// the serial number of its certificate. So it is in the memory of this process
// and of the gateway process and nowhere else, in no snapshot either, and
// whoever has the certificate alone gets it again from the same machine.
type authority struct {
	cert []byte // DER
	key  []byte // PKCS #8
	pem  []byte
}

// newAuthority makes an authority of which nobody knows yet.
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

// formerAuthority is the one whose certificate a sandbox knows from an earlier
// life. It is nil if that is of another machine, about to end or no authority
// at all: a snapshot says what it likes.
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

// authorityFor is the one that a sandbox knows from an earlier life, or a new one.
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

// deriveKey derives the key of the authority with a serial number. One number
// in 2³² is no key of the curve, and the next one is taken.
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

// masterKey reads the key of this machine, and makes it if there is none.
// Several processes may do so at once: the first one's is everybody's.
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
			Hint: "restore it from a copy of the state directory, or remove it: copies of sandboxes then trust a new authority",
		}
	}
	return key, nil
}

// makeMasterKey gives a whole file its name, unless another has it already.
func makeMasterKey(dir, path string) error {
	f, err := os.CreateTemp(dir, "."+keyName+"-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	key := make([]byte, keySize)
	_, _ = rand.Read(key) // never fails: it ends the program instead
	_, err = f.Write(key)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Link(f.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}
