package gvisor

import (
	"encoding/json"
	"sync/atomic"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

// FuzzManifest forges manifests of snapshots with a matching checksum.
func FuzzManifest(f *testing.F) {
	for _, m := range []manifest{
		{Format: manifestFormat, Image: "host", Parts: []part{{Name: snapFiles, Size: 7}}},
		{
			Format: manifestFormat, Parts: []part{{Name: snapFiles}, {Name: snapKernel}, {Name: snapIndex}, {Name: snapPages, Size: 1 << 40}},
			Memory: &memory{Engine: engine, Guest: "x", Image: &part{Name: snapGuest}, CPU: []string{"avx"}, Mounts: []string{"/a"}, Names: map[string]uint16{"x": 1}},
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
		s := &saved{users: new(atomic.Int32)}
		if err := s.parse(text); err != nil {
			if code := (&Provider{}).ErrorCode(err); code != sandbox.CodeInvalid {
				t.Errorf("refused with %q: %v", code, err)
			}
			return
		}
		if !summed && len(text) < sumLine {
			t.Error("a manifest without a checksum was accepted")
		}
		known := map[string]bool{snapFiles: true, snapKernel: true, snapIndex: true, snapPages: true, snapGuest: true}
		for _, p := range s.all() {
			if !known[p.Name] || p.Size < 0 {
				t.Errorf("accepted the part %+v", p)
			}
		}
		if s.Memory != nil {
			s.Memory.lacks([]string{"avx"})
		}
	})
}
