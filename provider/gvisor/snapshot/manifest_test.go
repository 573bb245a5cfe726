package snapshot

import (
	"encoding/json"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

// own is the engine whose memory can be restored in these tests.
func own(engine string) bool { return engine == "own" }

// FuzzManifest forges manifests of snapshots with a matching checksum.
func FuzzManifest(f *testing.F) {
	for _, m := range []Manifest{
		{Format: manifestFormat, Image: "host", Parts: []part{{Name: fileFiles, Size: 7}}},
		{
			Format: manifestFormat, Parts: []part{{Name: fileFiles}, {Name: fileKernel}, {Name: fileIndex}, {Name: filePages, Size: 1 << 40}},
			Memory: &Memory{Engine: "own", Guest: "x", Image: &part{Name: fileGuest}, CPU: []string{"avx"}, Mounts: []string{"/a"}, Names: map[string]uint16{"x": 1}},
		},
		{Format: manifestFormat, Parts: []part{{Name: "../../etc/passwd"}}},
	} {
		text, err := json.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, true)
	}
	f.Add([]byte(`{"format":1,"parts":[{"name":"files.tar","size":-1}]}`), true)
	f.Add([]byte("\n00000000\n"), false)
	f.Fuzz(func(t *testing.T, text []byte, summed bool) {
		if summed {
			text = append(text, lineOf(text)...)
		}
		var s Manifest
		if err := s.parse(text, own); err != nil {
			if code := sandbox.CodeOf(err); code != sandbox.CodeInvalid {
				t.Errorf("refused with %q: %v", code, err)
			}
			return
		}
		if !summed && len(text) < sumLine {
			t.Error("a manifest without a checksum was accepted")
		}
		known := map[string]bool{fileFiles: true, fileKernel: true, fileIndex: true, filePages: true, fileGuest: true}
		for _, p := range s.all(own) {
			if !known[p.Name] || p.Size < 0 {
				t.Errorf("accepted the part %+v", p)
			}
		}
		if s.Memory != nil {
			s.Memory.Lacks([]string{"avx"})
		}
	})
}
