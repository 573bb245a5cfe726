package e2bapi

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox"
)

// errNoTicket is the error for an upload without a ticket.
var errNoTicket = &sandbox.Error{Code: sandbox.CodeDenied, Subject: "upload", Message: "the address is invalid or has expired"}

// tickets are one-time upload URLs. They need no key, because clients send
// none. They are valid as long as the key that requested them.
type tickets struct {
	mu    sync.Mutex
	known map[string]ticket
}

type ticket struct {
	key, tenant, hash string
	expires           time.Time
	busy              bool // an upload is in progress
}

const (
	ticketLife = time.Hour
	maxTickets = 1000 // of one tenant
)

func (t *tickets) add(key, tenant, hash string, now time.Time) (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known == nil {
		t.known = map[string]ticket{}
	}
	others := 0
	for name, old := range t.known {
		switch {
		case now.After(old.expires) && !old.busy:
			delete(t.known, name)
		case old.tenant == tenant:
			others++
		}
	}
	if others >= maxTickets {
		return "", &sandbox.Error{Code: sandbox.CodeExhausted, Subject: "uploads", Message: "too many builds were announced but not started"}
	}
	name := strings.ToLower(rand.Text() + rand.Text())
	t.known[name] = ticket{key: key, tenant: tenant, hash: hash, expires: now.Add(ticketLife)}
	return name, nil
}

// take returns an unused ticket for one request. The caller returns it with
// done.
func (t *tickets) take(name string, now time.Time) (ticket, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	one, ok := t.known[name]
	if !ok || one.busy || now.After(one.expires) {
		return ticket{}, errNoTicket
	}
	one.busy = true
	t.known[name] = one
	return one, nil
}

// done returns a ticket. After a complete upload it is no longer valid.
func (t *tickets) done(name string, used bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	one, ok := t.known[name]
	if !ok {
		return
	}
	one.busy = false
	t.known[name] = one
	if used {
		delete(t.known, name)
	}
}

var filesHash = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{64}$`) })

// uploadLink reports whether files are already stored, and returns the upload URL.
func (h *buildAPI) uploadLink(w http.ResponseWriter, r *http.Request) error {
	hash := r.PathValue("hash")
	if !filesHash().MatchString(hash) {
		return invalid("hash", "is not a SHA-256 in hexadecimal digits")
	}
	present, err := h.uploads.has(tenantOf(r.Context()), hash)
	if err != nil {
		return err
	}
	name, err := h.tickets.add(apiKey(r), tenantOf(r.Context()), hash, h.opts.Now())
	if err != nil {
		return err
	}
	scheme := "http://"
	if r.TLS != nil {
		scheme = "https://"
	}
	writeJSON(w, http.StatusCreated, map[string]any{"present": present, "url": scheme + r.Host + "/uploads/" + name})
	return nil
}

// putUpload receives the files of a step.
func (h *buildAPI) putUpload(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("ticket")
	err := func() error {
		t, err := h.tickets.take(name, h.opts.Now())
		if err != nil {
			return err
		}
		used := false
		defer func() { h.tickets.done(name, used) }()
		ctx, err := authenticate(r.Context(), h.services, t.key)
		if err == nil {
			err = h.rights.Allow(ctx, "", ops.TemplateBuild)
		}
		if err != nil {
			return err
		}
		err = h.uploads.put(tenantOf(ctx), t.hash, r.Body)
		used = err == nil
		return err
	}()
	switch {
	case err == nil:
		w.WriteHeader(http.StatusOK)
	case r.Context().Err() == nil && !errors.Is(err, context.Canceled):
		h.fail(w, r, err)
	}
}

// Limits of uploads. They are a cache: clients upload missing files again.
const (
	maxUpload     = 4 << 30
	maxUploads    = 16 << 30 // of one tenant
	uploadsExpire = 24 * time.Hour
)

// uploads stores files for builds in a directory. Each tenant has its own,
// because knowing a hash is no permission to read the files.
type uploads struct{ dir string }

// path returns the path of the files with a hash.
func (u uploads) path(tenant, hash string) (string, error) {
	if sum, err := hex.DecodeString(hash); err != nil || len(sum) != sha256.Size {
		return "", &sandbox.Error{Code: sandbox.CodeInvalid, Op: "template.build", Subject: "filesHash", Message: "is not a SHA-256 in hexadecimal digits"}
	}
	owner := sha256.Sum256([]byte(tenant))
	return filepath.Join(u.dir, hex.EncodeToString(owner[:16]), strings.ToLower(hash)), nil
}

// has reports whether a tenant has files. If so, they are kept for some time.
func (u uploads) has(tenant, hash string) (bool, error) {
	path, err := u.path(tenant, hash)
	if err != nil {
		return false, err
	}
	now := time.Now()
	err = os.Chtimes(path, now, now) // it is needed again
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// put stores files: a tar, which may be compressed.
func (u uploads) put(tenant, hash string, r io.Reader) error {
	path, err := u.path(tenant, hash)
	if err != nil {
		return err
	}
	dir := filepath.Dir(path)
	if err := errors.Join(os.MkdirAll(dir, 0o700), trimUploads(dir, maxUploads, time.Now().Add(-uploadsExpire))); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	n, err := io.Copy(f, io.LimitReader(r, maxUpload+1))
	if err == nil && n > maxUpload {
		err = &sandbox.Error{Code: sandbox.CodeExhausted, Op: "template.build", Subject: "files", Message: fmt.Sprintf("are more than %d bytes", int64(maxUpload))}
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// trimUploads removes files older than since, then the oldest ones until the
// rest fits the limit.
func trimUploads(dir string, most int64, since time.Time) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var files []fs.FileInfo
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			files = append(files, info)
		}
	}
	slices.SortFunc(files, func(a, b fs.FileInfo) int { return b.ModTime().Compare(a.ModTime()) })
	var total int64
	var failed []error
	for _, info := range files {
		if total += info.Size(); total > most || info.ModTime().Before(since) {
			failed = append(failed, os.Remove(filepath.Join(dir, info.Name())))
		}
	}
	return errors.Join(failed...)
}
