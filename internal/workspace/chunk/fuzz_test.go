package chunk

import (
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

// FuzzIndex: the index of a pack in a hostile store names chunks within the pack,
// or is an error.
func FuzzIndex(f *testing.F) {
	c, err := NewCodec(nil)
	if err != nil {
		f.Fatal(err)
	}
	var b builder
	for _, text := range []string{"one", "two"} {
		sealed, err := c.Seal([]byte(text), nil)
		if err != nil {
			f.Fatal(err)
		}
		b.add(c.ID([]byte(text)), sealed)
	}
	p, err := b.finish(c, 1)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(p.Size, p.Index, b.Bytes()[p.Size-footerSize-p.Index:])
	f.Fuzz(func(t *testing.T, size, index int64, tail []byte) {
		forged := Pack{Target: 1, Name: p.Name, Size: size, Index: index}
		if !forged.valid() {
			return
		}
		slots, err := parseIndex(c, forged, tail)
		if err != nil {
			if sandbox.CodeOf(err) != sandbox.CodeInvalid {
				t.Errorf("%v", err)
			}
			return
		}
		for _, s := range slots {
			if s.offset < 0 || s.length < 0 || s.offset+s.length > size {
				t.Errorf("a chunk of %d bytes at %d in a pack of %d", s.length, s.offset, size)
			}
		}
	})
}
