package template

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
)

// version is part of every key. Increment it when the meaning of a description
// changes.
const version = 1

// key identifies the state of a build after a step.
type key string

// firstKey returns the key before the first step.
func firstKey(tenant, baseDigest string) key {
	return hash("atoll template", fmt.Sprint(version), tenant, baseDigest)
}

// next returns the key after a step. content is a hash of the files that it
// copies.
func (k key) next(s *Step, content string) (key, error) {
	said := *s
	said.Line, said.Text, said.Force = 0, "", false
	doc, err := json.Marshal(said)
	if err != nil {
		return "", err
	}
	return hash(string(k), string(doc), content), nil
}

// hash returns the hash of a list of strings, with unambiguous separators.
func hash(parts ...string) key {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s,", len(p), p)
	}
	return key(hex.EncodeToString(h.Sum(nil)))
}

// contentHash returns the hash of the files that a copy step copies, without
// owners, which are part of the step.
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
