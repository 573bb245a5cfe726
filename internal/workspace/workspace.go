// Package workspace stores versions of directories: every persisted state is a
// [Version], which can be listed, compared and restored. Content is cut into
// chunks that are stored once, compressed and optionally encrypted, in a blob
// store; see package chunk. Persisting again reads and uploads only what
// changed.
//
// In a blob store, a workspace consists of
//
//	config               its properties, and its key, sealed with another key
//	versions/NUMBER      the whole state after a change; the highest number is valid
//	packs/NUMBER/DIGEST  chunks, written for the record with that number
//
// A change writes packs and then the record with the next number. Only one
// writer can create that record. If a writer is killed before that, its packs
// have no record, and the next [Workspace.Prune] removes them. So workspaces
// need no locks, leases or synchronised clocks, on one machine or several.
//
// Neither directories, which code in sandboxes may change at any time, nor blob
// stores are trusted. Files are accessed through [os.Root].
package workspace

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/json"
	"io"

	"github.com/atoll-run/atoll/internal/blob"
	"github.com/atoll-run/atoll/internal/workspace/chunk"
	"github.com/atoll-run/atoll/sandbox"
)

// Workspace is an open workspace. It is safe for concurrent use, also by
// several processes. It need not be closed.
type Workspace struct {
	blobs  blob.Store
	codec  *chunk.Codec
	chunks *chunk.Store
	config config
}

type config struct {
	Format int    `json:"format"`
	ID     string `json:"id"`
	Key    []byte `json:"key,omitempty"` // sealed; empty: not encrypted
}

const configKey = "config"

// CreateOptions are the properties of a new workspace.
type CreateOptions struct {
	// ID identifies the workspace. If blobs are encrypted, exchanging them with
	// those of another workspace is detected.
	ID string
	// Key, of 32 bytes, encrypts the workspace's own random key. Nil: the
	// workspace is not encrypted.
	Key []byte
}

// Create creates an empty workspace. The blob store, or the part of it that
// blob.Below returns, must be for this workspace alone. If it already has one,
// Create returns CodeAlreadyExists.
func Create(ctx context.Context, blobs blob.Store, opts CreateOptions) (*Workspace, error) {
	c := config{Format: format, ID: opts.ID}
	if opts.Key != nil {
		aead, err := sealer(opts.Key)
		if err != nil {
			return nil, err
		}
		own := make([]byte, chunk.KeySize)
		_, _ = rand.Read(own) // never fails
		c.Key = aead.Seal(nil, nil, own, []byte(opts.ID))
	}
	encoded, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	once := blob.PutOptions{IfAbsent: true, Size: int64(len(encoded))}
	if err := blobs.Put(ctx, configKey, bytes.NewReader(encoded), once); err != nil {
		return nil, err
	}
	// With a service that ignores conditions, writers could overwrite each other's
	// records.
	if err := blobs.Put(ctx, configKey, bytes.NewReader(encoded), once); sandbox.CodeOf(err) != sandbox.CodeAlreadyExists {
		_ = blobs.Delete(ctx, configKey) // report the other error
		if err != nil {
			return nil, err
		}
		return nil, &sandbox.Error{
			Code: sandbox.CodeUnsupported, Op: "workspace.create", Message: "the S3 service ignores conditions (If-None-Match)",
			Hint: "use a service that honours conditional writes",
		}
	}
	return Open(ctx, blobs, opts.Key)
}

// Open opens a workspace. key is the key that it was created with. A wrong or
// missing key is CodeDenied.
func Open(ctx context.Context, blobs blob.Store, key []byte) (*Workspace, error) {
	body, err := blobs.Get(ctx, configKey, 0, 64<<10)
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }() // errors after reading do not matter
	encoded, err := io.ReadAll(body)
	if err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "workspace.open", Message: "its description cannot be read", Cause: err}
	}
	w := &Workspace{blobs: blobs}
	if json.Unmarshal(encoded, &w.config) != nil || w.config.Format != format {
		return nil, damaged("its description has an unknown format")
	}
	own, err := w.config.open(key)
	if err != nil {
		return nil, err
	}
	if w.codec, err = chunk.NewCodec(own); err != nil {
		return nil, damaged("its key is invalid")
	}
	w.chunks = chunk.NewStore(blobs, w.codec)
	return w, nil
}

// open returns the workspace's own key, nil if it is not encrypted.
func (c config) open(key []byte) ([]byte, error) {
	if len(c.Key) == 0 {
		if key != nil {
			// An attacker may have replaced it by a workspace without encryption.
			return nil, denied("the workspace is not encrypted, but was opened with a key")
		}
		return nil, nil
	}
	if key == nil {
		return nil, denied("the workspace is encrypted, but was opened without a key")
	}
	aead, err := sealer(key)
	if err != nil {
		return nil, err
	}
	own, err := aead.Open(nil, nil, c.Key, []byte(c.ID))
	if err != nil {
		return nil, denied("the key is not for this workspace")
	}
	return own, nil
}

func denied(message string) error {
	return &sandbox.Error{Code: sandbox.CodeDenied, Op: "workspace.open", Message: message}
}

func sealer(key []byte) (cipher.AEAD, error) {
	if len(key) != chunk.KeySize {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "workspace", Message: "a key has 32 bytes"}
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// ID returns the id that the workspace was created with.
func (w *Workspace) ID() string { return w.config.ID }

// Same reports whether two workspaces were created together: with the same id and key.
func (w *Workspace) Same(as *Workspace) bool {
	return w.config.ID == as.config.ID && bytes.Equal(w.config.Key, as.config.Key)
}

// Encrypted reports whether the workspace is encrypted.
func (w *Workspace) Encrypted() bool { return len(w.config.Key) > 0 }

// History returns all versions, oldest first.
func (w *Workspace) History(ctx context.Context) ([]Version, error) {
	r, err := w.head(ctx)
	if err != nil {
		return nil, err
	}
	return r.Versions, nil
}

// Latest returns the newest version. Its number is 0 if there is none.
func (w *Workspace) Latest(ctx context.Context) (Version, error) {
	r, err := w.head(ctx)
	if err != nil {
		return Version{}, err
	}
	return r.latest(), nil
}

// Revert creates a new version with the content of an older one. No content is
// copied. The note of the new version names the older one.
func (w *Workspace) Revert(ctx context.Context, number int, note string) (Version, error) {
	head, err := w.head(ctx)
	if err != nil {
		return Version{}, err
	}
	v, err := head.find(number)
	if err != nil {
		return Version{}, err
	}
	next := head.next()
	v.Number, v.Created, v.Note, v.Added = next.Number, now(), note, 0
	next.Versions = append(next.Versions, v)
	return v, w.commit(ctx, next)
}

// Delete removes a workspace with all versions. Repeat it until it succeeds;
// after a failure the workspace is damaged.
func Delete(ctx context.Context, blobs blob.Store) error {
	for _, prefix := range []string{recordPrefix, chunk.Prefix, configKey} {
		for info, err := range blobs.List(ctx, prefix) {
			if err != nil {
				return err
			}
			if err := blobs.Delete(ctx, info.Key); err != nil {
				return err
			}
		}
	}
	return nil
}
