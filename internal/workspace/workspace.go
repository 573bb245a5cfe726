// Package workspace keeps directories through time: every state that was
// persisted is a [Version], which can be listed, compared and restored. What is
// kept is cut into chunks, each kept once, compressed and perhaps encrypted, in
// any blob store; see package chunk. Persisting again reads and moves only what
// changed.
//
// In a blob store a workspace is
//
//	config               what it is, and its key, sealed with another
//	versions/NUMBER      the whole state after a change; the highest number counts
//	packs/NUMBER/DIGEST  chunks, written for the record with that number
//
// A change writes packs and then takes the next number for its record, which
// only one can. Whatever is killed before that leaves packs that no record
// names and the next [Workspace.Prune] removes: those written for its own
// number or an earlier one. So nothing here has locks, leases or clocks to
// agree on, on one machine or on many.
//
// Neither the directories, where code in sandboxes changes files under our
// hands, nor the blob stores are trusted. Files are reached through [os.Root].
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

// Workspace is an open workspace. Its methods may be called concurrently, by
// any number of processes. It holds nothing that has to be closed.
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

// CreateOptions say what a new workspace is like.
type CreateOptions struct {
	// ID names it. If blobs are encrypted, swapping them with those of another
	// workspace is detected.
	ID string
	// Key of 32 bytes encrypts the workspace's own key, which is made up. Nil:
	// nothing is encrypted.
	Key []byte
}

// Create makes an empty workspace, which has the blob store, or the part of it
// that blob.Below returns, for itself. An existing one is CodeAlreadyExists.
func Create(ctx context.Context, blobs blob.Store, opts CreateOptions) (*Workspace, error) {
	c := config{Format: format, ID: opts.ID}
	if opts.Key != nil {
		aead, err := sealer(opts.Key)
		if err != nil {
			return nil, err
		}
		own := make([]byte, chunk.KeySize)
		_, _ = rand.Read(own) // it does not fail
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
	// A service that does not know conditions would let writers overwrite each
	// other.
	if err := blobs.Put(ctx, configKey, bytes.NewReader(encoded), once); sandbox.CodeOf(err) != sandbox.CodeAlreadyExists {
		_ = blobs.Delete(ctx, configKey) // the other error is the news
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

// Open opens a workspace. Key is the key that it was created with. A wrong or
// missing one is CodeDenied.
func Open(ctx context.Context, blobs blob.Store, key []byte) (*Workspace, error) {
	body, err := blobs.Get(ctx, configKey, 0, 64<<10)
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }() // it was only read
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
		return nil, damaged("its key is not one")
	}
	w.chunks = chunk.NewStore(blobs, w.codec)
	return w, nil
}

// open returns the workspace's own key, nil if there is none.
func (c config) open(key []byte) ([]byte, error) {
	if len(c.Key) == 0 {
		if key != nil {
			// It may have been replaced by a workspace without encryption.
			return nil, denied("the workspace is not encrypted, and was opened with a key")
		}
		return nil, nil
	}
	if key == nil {
		return nil, denied("the workspace is encrypted, and was opened without a key")
	}
	aead, err := sealer(key)
	if err != nil {
		return nil, err
	}
	own, err := aead.Open(nil, nil, c.Key, []byte(c.ID))
	if err != nil {
		return nil, denied("the key is not this workspace's")
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

// ID is the id that the workspace was created with.
func (w *Workspace) ID() string { return w.config.ID }

// Encrypted reports whether its contents are.
func (w *Workspace) Encrypted() bool { return len(w.config.Key) > 0 }

// History returns all versions, oldest first.
func (w *Workspace) History(ctx context.Context) ([]Version, error) {
	r, err := w.head(ctx)
	if err != nil {
		return nil, err
	}
	return r.Versions, nil
}

// Latest returns the newest version. It has the number 0 if there is none yet.
func (w *Workspace) Latest(ctx context.Context) (Version, error) {
	r, err := w.head(ctx)
	if err != nil {
		return Version{}, err
	}
	return r.latest(), nil
}

// Revert makes an older state the newest: a new version with its content.
// Nothing is moved. The note of the new version says where it is from.
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

// Delete removes a workspace with all of its versions. It may be repeated until
// it succeeds; in between the workspace is damaged.
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
