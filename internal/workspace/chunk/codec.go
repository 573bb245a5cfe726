// Package chunk keeps pieces of content under names made from the content, so
// that each is kept once. Chunks are compressed, encrypted if there is a key,
// and written together into packs, which are blobs of some 16 MiB.
//
// A pack is its chunks, one after the other, then their index, then the
// index's length and a magic number, eight bytes together. It is never changed.
// Its name is the digest of its bytes, and names the version of the workspace
// it was written for. Which packs count is decided above.
//
// Data from a blob store is not trusted: reading returns the requested chunk,
// verified by its digest, or an error.
package chunk

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/atoll-run/atoll/sandbox"
)

// ID names a chunk: the SHA-256 of its content, or its HMAC under the
// workspace's key, so that without the key nobody can tell what is in a store.
type ID [sha256.Size]byte

func (id ID) String() string { return hex.EncodeToString(id[:]) }

// KeySize is the size of a key in bytes.
const KeySize = 32

// MaxSize is the largest content of a chunk in bytes.
const MaxSize = 8 << 20

// Codec names, compresses and encrypts. It may be used concurrently.
type Codec struct {
	aead   cipher.AEAD // nil: no encryption
	naming []byte
	gear   []byte
}

// NewCodec returns a Codec with a key of KeySize bytes, or without encryption
// if key is nil.
func NewCodec(key []byte) (*Codec, error) {
	if key == nil {
		return &Codec{}, nil
	}
	if len(key) != KeySize {
		return nil, fmt.Errorf("a key of %d bytes, want %d", len(key), KeySize)
	}
	var keys [3][]byte
	for i, use := range []string{"content", "names", "borders"} {
		var err error
		if keys[i], err = hkdf.Expand(sha256.New, key, "atoll workspace "+use, KeySize); err != nil {
			return nil, err
		}
	}
	block, err := aes.NewCipher(keys[0])
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	return &Codec{aead: aead, naming: keys[1], gear: keys[2]}, err
}

// ID returns the name of a content.
func (c *Codec) ID(content []byte) (id ID) {
	if c.naming == nil {
		return sha256.Sum256(content)
	}
	mac := hmac.New(sha256.New, c.naming)
	_, _ = mac.Write(content) // a hash does not fail
	mac.Sum(id[:0])
	return id
}

// Borders is the key that decides where large files are cut, nil without
// encryption: sizes of chunks tell something about content that is known.
func (c *Codec) Borders() []byte { return c.gear }

// What the first byte of a sealed content says about the rest.
const (
	plain      = 0
	compressed = 1
)

var encoder = sync.OnceValues(func() (*zstd.Encoder, error) {
	return zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(false))
})

var decoder = sync.OnceValues(func() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderMaxMemory(MaxState), zstd.WithDecoderConcurrency(0))
})

// MaxState is the largest content that Open returns, in bytes: a chunk, an
// index or a record.
const MaxState = 64 << 20

// Seal compresses and encrypts content. Open needs the same binding again.
func (c *Codec) Seal(content, boundTo []byte) ([]byte, error) {
	enc, err := encoder()
	if err != nil {
		return nil, err
	}
	sealed := make([]byte, 1, len(content)/2+64)
	sealed[0] = compressed
	if sealed = enc.EncodeAll(content, sealed); len(sealed) > len(content) {
		sealed = append(append(sealed[:0], plain), content...)
	}
	if c.aead != nil {
		sealed = c.aead.Seal(nil, nil, sealed, boundTo)
	}
	return sealed, nil
}

// Open is the reverse of Seal. Modified content, or another binding, is
// CodeInvalid. Without a key it notices that only if what is inside cannot be
// read.
func (c *Codec) Open(sealed, boundTo []byte) ([]byte, error) {
	if c.aead != nil {
		opened, err := c.aead.Open(nil, nil, sealed, boundTo)
		if err != nil {
			return nil, damaged("it was not written with this workspace's key, or was changed since")
		}
		sealed = opened
	}
	if len(sealed) == 0 {
		return nil, damaged("it is empty")
	}
	switch sealed[0] {
	case plain:
		return sealed[1:], nil
	case compressed:
		dec, err := decoder()
		if err != nil {
			return nil, err
		}
		content, err := dec.DecodeAll(sealed[1:], nil)
		if err != nil {
			return nil, damaged("it cannot be decompressed")
		}
		return content, nil
	}
	return nil, damaged("it is of an unknown kind")
}

// OpenID opens a chunk, and makes sure that it is that one.
func (c *Codec) OpenID(sealed []byte, id ID) ([]byte, error) {
	content, err := c.Open(sealed, id[:])
	if err != nil {
		return nil, err
	}
	if c.ID(content) != id {
		return nil, damaged("its content does not match its name")
	}
	return content, nil
}

// damaged says what is wrong with something in a store.
func damaged(format string, args ...any) error {
	return &sandbox.Error{
		Code: sandbox.CodeInvalid, Op: "workspace", Message: "the store is damaged: " + fmt.Sprintf(format, args...),
		Hint: "restore the blob store from a backup, or an older version of the workspace",
	}
}
