package snapshotstore_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

// FuzzManifest puts something else in the place of a snapshot's manifest. The
// snapshot is used as it was written, or not at all.
func FuzzManifest(f *testing.F) {
	root := f.TempDir()
	s := open(f, root)
	keep(f, s, "one")
	path := filepath.Join(root, "one", "manifest.json")
	good, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	type manifest struct {
		Files []struct {
			Path   string `json:"path"`
			Size   int64  `json:"size"`
			SHA256 string `json:"sha256"`
		} `json:"files"`
	}
	var want manifest
	if err := json.Unmarshal(good, &want); err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add(bytes.Replace(good, []byte("sub/tree"), []byte("../tree\\u0000"), 1))
	f.Add([]byte(`{"files":[]}`))
	f.Add([]byte(`{"files":[{"path":"../../../../etc/passwd","size":1},{"path":"","size":-1}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		_, release, err := s.Use(t.Context(), refTo("one"))
		if err != nil {
			if sandbox.CodeOf(err) != sandbox.CodeInvalid {
				t.Errorf("refused with %v", err)
			}
			return
		}
		release()
		var got manifest
		if err := json.NewDecoder(bytes.NewReader(text)).Decode(&got); err != nil || len(got.Files) != len(want.Files) {
			t.Fatalf("used with %d files: %v", len(got.Files), err)
		}
		for i := range want.Files {
			if got.Files[i] != want.Files[i] {
				t.Errorf("used with %+v", got.Files[i])
			}
		}
	})
}
