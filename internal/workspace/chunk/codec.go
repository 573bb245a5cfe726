// Package chunk stores pieces of content under names derived from the content,
// so that equal pieces are stored once. Chunks are compressed, encrypted if
// there is a key, and combined to packs: blobs of about 16 MiB.
//
// A pack consists of its chunks, their index, and eight bytes with the length
// of the index and a magic number. It is immutable. Its name consists of the
// digest of its bytes and the version of the workspace that it was written for.
// The workspace's records determine which packs are valid.
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

// ID names a chunk: the SHA-256 of its content, or its HMAC with the
// workspace's key, so that without the key names reveal nothing about the
// content.
type ID [sha256.Size]byte

func (id ID) String() string { return hex.EncodeToString(id[:]) }

// KeySize is the size of a key in bytes.
const KeySize = 32

// MaxSize is the largest content of a chunk in bytes.
const MaxSize = 8 << 20

// Codec names, compresses and encrypts chunks. It is safe for concurrent use.
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

// Borders returns the key that determines where large files are cut, nil
// without encryption. Without a secret key, chunk sizes could identify known
// content.
func (c *Codec) Borders() []byte { return c.gear }

// The first byte of sealed content says how the rest is encoded.
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

// MaxState is the maximum size of content returned by Open, in bytes: a chunk,
// an index or a record.
const MaxState = 64 << 20

// Seal compresses and encrypts content. Open needs the same boundTo.
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

// Open decrypts and decompresses content. Modified content or another boundTo
// is CodeInvalid. Without a key, modifications are detected only if they make
// the content unreadable.
func (c *Codec) Open(sealed, boundTo []byte) ([]byte, error) {
	if c.aead != nil {
		opened, err := c.aead.Open(nil, nil, sealed, boundTo)
		if err != nil {
			return nil, damaged("it was not written with this workspace's key, or has been modified")
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

// OpenID opens a chunk and verifies its ID.
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

// damaged returns an error that describes damaged data in a store.
func damaged(format string, args ...any) error {
	return &sandbox.Error{
		Code: sandbox.CodeInvalid, Op: "workspace", Message: "the store is damaged: " + fmt.Sprintf(format, args...),
		Hint: "restore the blob store from a backup, or an older version of the workspace",
	}
}
