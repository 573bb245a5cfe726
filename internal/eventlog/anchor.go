package eventlog

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// Anchor keeps the head of each tenant's log outside the database, so that
// Verify notices when the newest records are removed. Its methods are not
// called concurrently.
type Anchor interface {
	// Kept returns the head that was kept last, or a zero Head.
	Kept(tenant string) (Head, error)
	// Keep keeps a head, durably.
	Keep(tenant string, h Head) error
}

// FileAnchor keeps heads in files in a directory. It only helps if an attacker
// who can write to the database cannot write to the directory: put it on
// another file system, or use a Key that is stored elsewhere.
type FileAnchor struct {
	Dir string
	// Key authenticates the files with HMAC-SHA256. Without it, anyone who can
	// write to the directory can forge them.
	Key []byte
}

type anchorFile struct {
	Tenant string `json:"tenant"`
	Seq    int64  `json:"seq"`
	Hash   string `json:"hash"`
	MAC    string `json:"mac,omitempty"`
}

func (a *FileAnchor) path(tenant string) (string, error) {
	if err := sandbox.ValidateName(tenant); err != nil {
		return "", err
	}
	return filepath.Join(a.Dir, tenant+".head"), nil
}

func (a *FileAnchor) mac(f anchorFile) string {
	if len(a.Key) == 0 {
		return ""
	}
	m := hmac.New(sha256.New, a.Key)
	fmt.Fprintf(m, "atoll head v1\n%s\n%d\n%s", f.Tenant, f.Seq, f.Hash)
	return hex.EncodeToString(m.Sum(nil))
}

// Kept reads a tenant's file. A file that Keep did not write is an error.
func (a *FileAnchor) Kept(tenant string) (Head, error) {
	path, err := a.path(tenant)
	if err != nil {
		return Head{}, err
	}
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Head{}, nil
	}
	if err != nil {
		return Head{}, err
	}
	var f anchorFile
	if err := json.Unmarshal(raw, &f); err != nil {
		return Head{}, fmt.Errorf("%s: %w", path, err)
	}
	hash, err := hex.DecodeString(f.Hash)
	if err != nil || len(hash) != sha256.Size || f.Tenant != tenant || f.Seq < 1 {
		return Head{}, fmt.Errorf("%s is damaged", path)
	}
	if !hmac.Equal([]byte(f.MAC), []byte(a.mac(f))) {
		return Head{}, fmt.Errorf("%s is not authentic", path)
	}
	return Head{f.Seq, Hash(hash)}, nil
}

// Keep replaces a tenant's file atomically.
func (a *FileAnchor) Keep(tenant string, h Head) error {
	path, err := a.path(tenant)
	if err != nil {
		return err
	}
	f := anchorFile{Tenant: tenant, Seq: h.Seq, Hash: hex.EncodeToString(h.Hash[:])}
	f.MAC = a.mac(f)
	raw, err := json.Marshal(f)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(a.Dir, 0o700); err != nil {
		return err
	}
	// The name is fixed, so that a killed daemon leaves at most one temporary
	// file.
	tmp, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = tmp.Write(append(raw, '\n'))
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp.Name()))
	}
	return nil
}

// anchorer keeps heads in the background, many at once.
type anchorer struct {
	log  *Log
	quit chan struct{}
	done chan struct{}
	wake chan struct{}

	mu     sync.Mutex
	heads  map[string]Head
	closed sync.Once
	err    error // of the last write
}

func startAnchorer(l *Log) *anchorer {
	a := &anchorer{
		log: l, quit: make(chan struct{}), done: make(chan struct{}), wake: make(chan struct{}, 1), heads: map[string]Head{},
	}
	go a.run()
	return a
}

// note stores the newest head of a tenant for the next write.
func (a *anchorer) note(tenant string, h Head) {
	a.mu.Lock()
	if a.heads[tenant].Seq < h.Seq {
		a.heads[tenant] = h
	}
	a.mu.Unlock()
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

func (a *anchorer) run() {
	defer close(a.done)
	for {
		select {
		case <-a.wake:
			a.keep()
		case <-a.quit:
			a.keep()
			return
		}
		select {
		case <-time.After(a.log.opts.AnchorEvery):
		case <-a.quit:
			a.keep()
			return
		}
	}
}

func (a *anchorer) keep() {
	a.mu.Lock()
	heads := a.heads
	a.heads = map[string]Head{}
	a.mu.Unlock()
	if len(heads) == 0 {
		return
	}
	var errs []error
	for _, tenant := range slices.Sorted(maps.Keys(heads)) {
		if err := a.log.keepHead(tenant, heads[tenant]); err != nil {
			errs = append(errs, fmt.Errorf("the head of the log of %s was not kept: %w", tenant, err))
		}
	}
	a.err = errors.Join(errs...)
	if a.err != nil && a.log.opts.OnError != nil {
		a.log.opts.OnError(a.err)
	}
}

// keepHead moves a tenant's anchor forward, but only along the chain. Otherwise
// a log that was truncated and then extended would hide the truncation.
func (l *Log) keepHead(tenant string, h Head) error {
	kept, err := l.opts.Anchor.Kept(tenant)
	if err != nil {
		return err
	}
	if kept.Seq > 0 {
		if kept.Seq >= h.Seq && kept != h {
			return errors.New("the anchor does not match the log: the log was cut or rewritten")
		}
		ctx, cancel := context.WithTimeout(context.Background(), appendTimeout)
		defer cancel()
		on, err := l.onChain(ctx, tenant, kept)
		if err != nil {
			return err
		}
		if !on {
			return errors.New("the anchor does not match the log: the log was cut or rewritten")
		}
	}
	return l.opts.Anchor.Keep(tenant, h)
}

// CheckHead reports an error if the recorded end of a tenant's log is not its
// last record, or if the anchored head is not part of the chain. It reads only
// those records; [Log.Verify] reads the whole log.
func (l *Log) CheckHead(ctx context.Context, tenant string) error {
	head, err := l.Head(ctx, tenant)
	if err != nil {
		return err
	}
	var kept Head
	if l.opts.Anchor != nil {
		if kept, err = l.opts.Anchor.Kept(tenant); err != nil {
			return damaged(err)
		}
	}
	for _, h := range []Head{head, kept} {
		if h.Seq == 0 {
			continue
		}
		on, err := l.onChain(ctx, tenant, h)
		if err != nil {
			return err
		}
		if !on {
			return &sandbox.Error{Code: sandbox.CodeConflict, Op: "audit.verify", Subject: tenant, Message: "the end of the log differs from the copy that was kept of it"}
		}
	}
	return nil
}

// onChain reports whether h is the hash of the record with its number, if that
// record still exists.
func (l *Log) onChain(ctx context.Context, tenant string, h Head) (bool, error) {
	begin, _, fault, err := l.beginning(ctx, tenant)
	if err != nil || fault != nil || h.Seq == begin.Seq {
		return h == begin && fault == nil, err
	}
	if h.Seq < begin.Seq {
		return true, nil // another daemon that has the key has pruned it since
	}
	rows, err := store.Read(ctx, l.store, func(tx *store.Tx) ([]store.EventRow, error) {
		return tx.Events().List(ctx, tenant, store.EventFilter{}, h.Seq-1, 1)
	})
	if err != nil {
		return false, err
	}
	return len(rows) == 1 && rows[0].Seq == h.Seq && string(rows[0].Hash) == string(h.Hash[:]), nil
}

func (a *anchorer) close() error {
	a.closed.Do(func() { close(a.quit) })
	<-a.done
	return a.err
}
