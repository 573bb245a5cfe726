package workspace

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"os"
)

// cache stores what is known about a directory's files from the last Persist,
// by path. It is a file next to the directory that saves work: a missing or
// invalid cache counts as empty.
type cache map[string]cached

type cached struct {
	state   state
	content []piece
	xattrs  []xattr
}

const cacheMagic = "atoll workspace cache 1\n"

func loadCache(name, id string) cache {
	if name == "" {
		return nil
	}
	all, err := os.ReadFile(name)
	if err != nil || len(all) < sha256.Size {
		return nil
	}
	body, sum := all[:len(all)-sha256.Size], all[len(all)-sha256.Size:]
	if own := sha256.Sum256(body); !bytes.Equal(own[:], sum) {
		return nil
	}
	body, ok := bytes.CutPrefix(body, []byte(cacheMagic+id+"\n"))
	if !ok {
		return nil
	}
	p := &parser{rest: body}
	c := make(cache, len(body)/128)
	for len(p.rest) > 0 {
		name := p.string(maxTarget)
		var e cached
		e.state = state{
			dev: p.uvarint(1<<64 - 1), ino: p.uvarint(1<<64 - 1), size: p.varint(), modified: p.varint(), changed: p.varint(),
		}
		e.content = p.pieces()
		for range p.uvarint(maxXattrs) {
			e.xattrs = append(e.xattrs, xattr{p.string(maxName), p.bytes(p.uvarint(maxXattrs))})
			if p.bad != nil {
				break
			}
		}
		c[name] = e
	}
	if p.bad != nil {
		return nil
	}
	return c
}

// saveCache replaces the cache. If that fails, the next Persist reads more
// files.
func saveCache(name, id string, c cache) {
	if name == "" {
		return
	}
	out := []byte(cacheMagic + id + "\n")
	for name, e := range c {
		out = appendString(out, name)
		out = binary.AppendUvarint(out, e.state.dev)
		out = binary.AppendUvarint(out, e.state.ino)
		out = binary.AppendVarint(out, e.state.size)
		out = binary.AppendVarint(out, e.state.modified)
		out = binary.AppendVarint(out, e.state.changed)
		out = appendPieces(out, e.content)
		out = binary.AppendUvarint(out, uint64(len(e.xattrs)))
		for _, x := range e.xattrs {
			out = appendString(appendString(out, x.name), string(x.value))
		}
	}
	sum := sha256.Sum256(out)
	if fresh := name + ".new"; os.WriteFile(fresh, append(out, sum[:]...), 0o600) != nil || os.Rename(fresh, name) != nil {
		_ = os.Remove(fresh) // of no use
	}
}
