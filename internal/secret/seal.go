package secret

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

// keySize is the size of the key in bytes. The file contains it in hex.
const keySize = 32

// Sealer encrypts values for the store. Every value is encrypted with its own
// key, derived from one key file, and is bound to its owner: a value that is
// moved to another row of the store cannot be decrypted.
type Sealer struct {
	master []byte
	id     string
}

// OpenSealer reads the key at path, or creates it. The file must be a regular
// file that only its owner can read. Daemons that share a store need the same
// key.
func OpenSealer(path string) (*Sealer, error) {
	key, err := readKey(path)
	if errors.Is(err, os.ErrNotExist) {
		if err = makeKey(path); err == nil || errors.Is(err, os.ErrExist) {
			key, err = readKey(path)
		}
	}
	if err != nil {
		var known *sandbox.Error
		if errors.As(err, &known) {
			return nil, err
		}
		return nil, &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "secret.key", Subject: path, Message: "the key cannot be read or created", Cause: err}
	}
	return newSealer(key), nil
}

func newSealer(key []byte) *Sealer {
	sum := sha256.Sum256(append([]byte("atoll secret key id\x00"), key...))
	return &Sealer{master: key, id: hex.EncodeToString(sum[:8])}
}

// KeyID identifies the key without revealing it.
func (s *Sealer) KeyID() string { return s.id }

func readKey(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	bad := func(message string) error {
		return &sandbox.Error{
			Code: sandbox.CodeUnavailable, Op: "secret.key", Subject: path, Message: message,
			Hint: "restore the file from a backup, with mode 0600; without it the stored secrets cannot be read",
		}
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
		return nil, bad("the key is not a file that only its owner may read")
	}
	text := make([]byte, 2*keySize+2)
	n, _ := f.ReadAt(text, 0)
	key := make([]byte, keySize)
	line := trimNewline(text[:n])
	if len(line) != 2*keySize {
		return nil, bad("the key is damaged")
	}
	if _, err := hex.Decode(key, line); err != nil {
		return nil, bad("the key is damaged")
	}
	return key, nil
}

// makeKey creates the key file atomically and durably.
func makeKey(path string) (err error) {
	key := make([]byte, keySize)
	_, _ = rand.Read(key) // never fails: it crashes the program instead
	f, err := os.CreateTemp(filepath.Dir(path), ".secret.key-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = fmt.Fprintln(f, hex.EncodeToString(key))
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Link(f.Name(), path) // unlike a rename, it does not replace an existing file
}

// Owner identifies the owner of a value.
type Owner struct {
	Tenant  string
	Name    string
	Version int64
}

// label is unambiguous, because tenants and names contain no NUL byte.
func (o Owner) label() string {
	return "atoll secret\x00" + o.Tenant + "\x00" + o.Name + "\x00" + strconv.FormatInt(o.Version, 10)
}

func (s *Sealer) aead(o Owner) (cipher.AEAD, error) {
	key, err := hkdf.Key(sha256.New, s.master, nil, o.label(), keySize)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// Seal encrypts a value.
func (s *Sealer) Seal(o Owner, v Value) ([]byte, error) {
	aead, err := s.aead(o)
	if err != nil {
		return nil, err
	}
	return aead.Seal(nil, nil, v.Reveal(), []byte(o.label())), nil
}

// Open decrypts a value. keyID is the KeyID of the Sealer that encrypted it.
func (s *Sealer) Open(o Owner, keyID string, sealed []byte) (Value, error) {
	fail := func(message, hint string) error {
		return &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "secret.open", Subject: o.Name, Message: message, Hint: hint}
	}
	if keyID != s.id {
		return Value{}, fail("it was encrypted with another key", "give this daemon the key file of the one that stored it, or rotate the secret")
	}
	aead, err := s.aead(o)
	if err != nil {
		return Value{}, err
	}
	raw, err := aead.Open(nil, nil, sealed, []byte(o.label()))
	if err != nil {
		return Value{}, fail("the stored value is damaged", "rotate the secret")
	}
	return NewValue(raw), nil
}
