package snapshotstore

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/atoll-run/atoll/sandbox"
)

const (
	keySize   = 32
	sealedExt = ".sealed"
)

// Environments stores the environment variables of sandboxes, which may contain
// secrets, so that another daemon can start a sandbox again. They are encrypted
// with a key in a file of the machine: a copy of the directory or the database
// does not reveal them. It is safe for concurrent use.
type Environments struct {
	dir  string
	seal cipher.AEAD
}

// OpenEnvironments opens a directory of environments. It creates the directory,
// and the key in keyFile, if they are missing.
func OpenEnvironments(dir, keyFile string) (*Environments, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	key, err := os.ReadFile(keyFile)
	if errors.Is(err, fs.ErrNotExist) {
		key = make([]byte, keySize)
		_, _ = rand.Read(key) // never fails: it crashes the program instead
		err = replace(keyFile, key)
	}
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil || len(key) != keySize {
		return nil, &sandbox.Error{
			Code: sandbox.CodeUnavailable, Subject: keyFile, Message: "the key that seals environments is damaged",
			Hint: "restore it from a backup of the state directory",
		}
	}
	seal, err := cipher.NewGCMWithRandomNonce(block)
	return &Environments{dir, seal}, err
}

func (e *Environments) path(id sandbox.ID) string {
	return filepath.Join(e.dir, string(id)+sealedExt)
}

// Put stores the environment of a sandbox. An empty one is not stored.
func (e *Environments) Put(id sandbox.ID, env map[string]string) error {
	if len(env) == 0 {
		return nil
	}
	text, err := json.Marshal(env)
	if err != nil {
		return err
	}
	return replace(e.path(id), e.seal.Seal(nil, nil, text, []byte(id)))
}

// Get returns the environment of a sandbox, nil if it had none.
func (e *Environments) Get(id sandbox.ID) (env map[string]string, err error) {
	sealed, err := os.ReadFile(e.path(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	text, err := e.seal.Open(nil, nil, sealed, []byte(id))
	if err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Subject: string(id), Message: "the environment of the sandbox is damaged", Cause: err}
	}
	return env, json.Unmarshal(text, &env)
}

// Remove removes the environment of a sandbox.
func (e *Environments) Remove(id sandbox.ID) error {
	err := os.Remove(e.path(id))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// List returns the sandboxes whose environments are stored.
func (e *Environments) List() (ids []sandbox.ID, err error) {
	entries, err := os.ReadDir(e.dir)
	for _, f := range entries {
		if id, ok := strings.CutSuffix(f.Name(), sealedExt); ok {
			ids = append(ids, sandbox.ID(id))
		}
	}
	return ids, err
}

// replace writes a file atomically.
func replace(path string, data []byte) error {
	if err := writeSynced(path+".new", data); err != nil {
		return err
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}
