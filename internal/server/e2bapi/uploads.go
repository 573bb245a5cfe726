package e2bapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// Bounds of uploads. They are a cache: clients send again what is missing.
const (
	maxUpload     = 4 << 30
	maxUploads    = 16 << 30 // of one tenant
	uploadsExpire = 24 * time.Hour
)

// uploadPath returns where the caller's tenant keeps files of a hash, which it
// alone vouches for.
func (h *Handler) uploadPath(ctx context.Context, hash string) (string, error) {
	if sum, err := hex.DecodeString(hash); err != nil || len(sum) != sha256.Size {
		return "", &sandbox.Error{Code: sandbox.CodeInvalid, Op: "template.build", Subject: "filesHash", Message: "is not a SHA-256 in hexadecimal digits"}
	}
	tenant := sha256.Sum256([]byte(h.service.Tenant(ctx)))
	return filepath.Join(h.opts.Uploads, hex.EncodeToString(tenant[:16]), strings.ToLower(hash)), nil
}

// hasUpload reports whether the tenant has files of that hash.
func (h *Handler) hasUpload(ctx context.Context, hash string) (bool, error) {
	path, err := h.uploadPath(ctx, hash)
	if err != nil {
		return false, err
	}
	now := time.Now()
	err = os.Chtimes(path, now, now) // it is wanted again
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// storeUpload keeps files under a hash: a tar, perhaps compressed.
func (h *Handler) storeUpload(ctx context.Context, hash string, r io.Reader) error {
	path, err := h.uploadPath(ctx, hash)
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

// trimUploads removes what is older than a time, and the oldest of what is more
// than so many bytes.
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
