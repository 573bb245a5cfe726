package template

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
)

// version is part of every key: raise it when the same description comes to
// mean something else.
const version = 1

// key names the state of a build after a step.
type key string

// firstKey is the key before the first step.
func firstKey(tenant, baseDigest string) key {
	return hash("atoll template", fmt.Sprint(version), tenant, baseDigest)
}

// next is the key after a step. Content is a hash of what the step copies.
func (k key) next(s *Step, content string) (key, error) {
	said := *s
	said.Line, said.Text, said.Force = 0, "", false
	doc, err := json.Marshal(said)
	if err != nil {
		return "", err
	}
	return hash(string(k), string(doc), content), nil
}

// hash is the hash of a list of strings, none of which can be mistaken for two.
func hash(parts ...string) key {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s,", len(p), p)
	}
	return key(hex.EncodeToString(h.Sum(nil)))
}

// contentHash is the hash of what a copy step copies, owners left out: those
// are part of the step.
func (f *Files) contentHash(s *Step) (string, error) {
	h := sha256.New()
	w := tar.NewWriter(h)
	if err := f.writeCopy(w, s, "/"+destination("/", s), owner{}); err != nil {
		return "", err
	}
	if err := w.Close(); err != nil && err != io.EOF {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
