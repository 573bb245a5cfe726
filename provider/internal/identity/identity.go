// Package identity assigns a unique name to a provider's directory.
package identity

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Valid reports whether a text is a valid name of a directory.
func Valid(name string) bool {
	text, err := hex.DecodeString(name)
	return err == nil && len(text) == size
}

const size = 8 // bytes

// Of returns the name stored in a file, and creates it when it is first needed.
// Callers in any number of processes get the same name. The directory of the
// file must exist.
func Of(file string) (string, error) {
	text, err := os.ReadFile(file)
	if !errors.Is(err, fs.ErrNotExist) {
		return strings.TrimSpace(string(text)), err
	}
	var random [size]byte
	_, _ = rand.Read(random[:]) // Read never fails.
	tmp, err := os.CreateTemp(filepath.Dir(file), ".identity-")
	if err != nil {
		return "", err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.WriteString(hex.EncodeToString(random[:]))
	if err := errors.Join(err, tmp.Close()); err != nil {
		return "", err
	}
	// The first process wins.
	if err := os.Link(tmp.Name(), file); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	text, err = os.ReadFile(file)
	return strings.TrimSpace(string(text)), err
}
