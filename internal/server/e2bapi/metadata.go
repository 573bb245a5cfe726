package e2bapi

import (
	"net/http"
	"strings"

	"github.com/atoll-run/atoll/sandbox"
)

// Metadata of files is sent in headers and stored in extended attributes.
const (
	metadataHeader    = "X-Metadata-"
	metadataNamespace = "e2b."
	maxMetadataKey    = 246
	maxMetadataBytes  = 4096
)

// metadataIn returns the metadata of an upload, with keys in lower case. The
// first of several equal headers wins.
func metadataIn(header http.Header) (map[string]string, error) {
	total := 0
	var found map[string]string
	for k, values := range header {
		key, ok := strings.CutPrefix(k, metadataHeader)
		if !ok {
			continue
		}
		key = strings.ToLower(key)
		value := values[0]
		if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }) {
			return nil, invalid("metadata", "the value of %.80q is not printable ASCII", key)
		}
		total += len("user."+metadataNamespace) + len(key) + len(value)
		if key == "" || len(key) > maxMetadataKey || total > maxMetadataBytes {
			return nil, invalid("metadata", "is too much")
		}
		if found == nil {
			found = map[string]string{}
		}
		found[key] = value
	}
	return found, nil
}

// metadataOf returns the metadata of a file.
func metadataOf(info *sandbox.FileDetails) map[string]string {
	var found map[string]string
	for name, value := range info.Attributes {
		key, ok := strings.CutPrefix(name, metadataNamespace)
		if !ok {
			continue
		}
		if found == nil {
			found = map[string]string{}
		}
		found[key] = strings.ToValidUTF8(value, "\ufffd")
	}
	return found
}
