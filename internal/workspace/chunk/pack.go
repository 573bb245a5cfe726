package chunk

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"

	"github.com/atoll-run/atoll/internal/blob"
	"github.com/atoll-run/atoll/sandbox"
)

// Pack describes a pack.
type Pack struct {
	Target int    `json:"target"` // the version it was written for
	Name   string `json:"name"`   // the SHA-256 of its bytes, in hexadecimal
	Size   int64  `json:"size"`   // bytes
	Index  int64  `json:"index"`  // bytes of its sealed index
}

// Prefix is the prefix of the keys of all packs.
const Prefix = "packs/"

// Key returns the key of the pack in its blob store.
func (p Pack) Key() string { return fmt.Sprintf("%s%010d/%s", Prefix, p.Target, p.Name) }

// ParseKey parses the key of a pack.
func ParseKey(key string) (p Pack, ok bool) {
	n, err := fmt.Sscanf(key, Prefix+"%010d/%64s", &p.Target, &p.Name)
	return p, err == nil && n == 2 && p.Key() == key
}

// valid reports whether a description is plausible.
func (p Pack) valid() bool {
	sum, err := hex.DecodeString(p.Name)
	return err == nil && len(sum) == sha256.Size && p.Target >= 0 && p.Index > 0 && p.Index <= MaxState &&
		p.Size >= p.Index+footerSize && p.Size <= maxPack
}

const (
	packSize   = 16 << 20                   // a pack is complete when it has this many bytes
	maxPack    = packSize + MaxSize + 8<<20 // the maximum size of a pack with its index
	footerSize = 8
	magic      = "ATP1"
)

// slot is the position of a chunk in a pack.
type slot struct {
	id     ID
	offset int64
	length int64
}

// builder collects chunks of one pack.
type builder struct {
	bytes.Buffer
	slots []slot
}

func (b *builder) add(id ID, sealed []byte) {
	b.slots = append(b.slots, slot{id, int64(b.Len()), int64(len(sealed))})
	_, _ = b.Write(sealed) // a buffer does not fail
}

// finish appends the index.
func (b *builder) finish(c *Codec, target int) (Pack, error) {
	index := make([]byte, 0, len(b.slots)*(len(ID{})+3))
	for _, s := range b.slots {
		index = append(index, s.id[:]...)
		index = binary.AppendUvarint(index, uint64(s.length))
	}
	sealed, err := c.Seal(index, []byte("index"))
	if err != nil {
		return Pack{}, err
	}
	_, _ = b.Write(sealed)
	_, _ = b.Write(binary.BigEndian.AppendUint32(nil, uint32(len(sealed))))
	_, _ = b.WriteString(magic)
	sum := sha256.Sum256(b.Bytes())
	return Pack{Target: target, Name: hex.EncodeToString(sum[:]), Size: int64(b.Len()), Index: int64(len(sealed))}, nil
}

// readIndex fetches the index of a pack.
func readIndex(ctx context.Context, blobs blob.Store, c *Codec, p Pack) ([]slot, error) {
	if !p.valid() {
		return nil, damaged("the description of a pack is invalid")
	}
	tail, err := read(ctx, blobs, p.Key(), p.Size-footerSize-p.Index, p.Index+footerSize)
	if err != nil {
		return nil, err
	}
	return parseIndex(c, p, tail)
}

func parseIndex(c *Codec, p Pack, tail []byte) ([]slot, error) {
	if int64(len(tail)) != p.Index+footerSize || string(tail[len(tail)-len(magic):]) != magic ||
		int64(binary.BigEndian.Uint32(tail[p.Index:])) != p.Index {
		return nil, damaged("the pack %s is truncated or not a pack", p.Name)
	}
	index, err := c.Open(tail[:p.Index], []byte("index"))
	if err != nil {
		return nil, err
	}
	var slots []slot
	var offset int64
	for len(index) > 0 {
		var s slot
		if len(index) < len(s.id) {
			return nil, damaged("the index of the pack %s ends in the middle", p.Name)
		}
		index = index[copy(s.id[:], index):]
		length, n := binary.Uvarint(index)
		if n <= 0 || length == 0 || length > maxPack || offset+int64(length) > p.Size-footerSize-p.Index {
			return nil, damaged("the index of the pack %s points outside the pack", p.Name)
		}
		s.offset, s.length = offset, int64(length)
		slots, index, offset = append(slots, s), index[n:], offset+s.length
	}
	return slots, nil
}

// read reads exactly length bytes of a blob.
func read(ctx context.Context, blobs blob.Store, key string, offset, length int64) ([]byte, error) {
	r, err := blobs.Get(ctx, key, offset, length)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }() // errors after reading do not matter
	out := make([]byte, length)
	switch _, err := io.ReadFull(r, out); {
	case err == io.EOF || err == io.ErrUnexpectedEOF:
		return nil, damaged("%s is shorter than it was", key)
	case err != nil:
		return nil, shown(ctx, err)
	}
	return out, nil
}

// shown classifies a transfer error.
func shown(ctx context.Context, err error) error {
	code := sandbox.CodeOf(err)
	if ctx.Err() != nil {
		code = sandbox.CodeOf(ctx.Err())
	} else if code == sandbox.CodeInternal {
		code = sandbox.CodeUnavailable
	}
	return &sandbox.Error{Code: code, Op: "workspace", Message: "the response of the blob store is incomplete", Cause: err}
}
