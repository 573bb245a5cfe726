package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"io/fs"
	"net/http"
	"strings"
)

// types are the content types of the files of the build.
var types = map[string]string{
	".html":  "text/html; charset=utf-8",
	".js":    "text/javascript; charset=utf-8",
	".css":   "text/css; charset=utf-8",
	".svg":   "image/svg+xml",
	".json":  "application/json",
	".txt":   "text/plain; charset=utf-8",
	".woff2": "font/woff2",
	".wasm":  "application/wasm",
}

// digests returns the entity tags of all files, by their names without .gz.
func digests(files fs.FS) map[string]string {
	tags := map[string]string{}
	err := fs.WalkDir(files, ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		plain, ok := strings.CutSuffix(name, ".gz")
		if !ok {
			return nil
		}
		text, err := fs.ReadFile(files, name)
		sum := sha256.Sum256(text)
		tags[plain] = `"` + hex.EncodeToString(sum[:8]) + `"`
		return err
	})
	if err != nil {
		panic(err) // cannot happen: the files are embedded
	}
	return tags
}

// sendGzip sends compressed content as it is, if the client takes that.
func sendGzip(w http.ResponseWriter, r *http.Request, text []byte) error {
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = w.Write(text) // the client may be gone
		return nil
	}
	z, err := gzip.NewReader(bytes.NewReader(text))
	if err != nil {
		return err
	}
	_, _ = io.Copy(w, z) //nolint:gosec // the content is our own build
	return nil
}
