package daemon

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

const (
	databaseName = "atoll.db"
	anchorsName  = "anchors"
	blobsName    = "blobs"
)

// Restore puts a copy that store.Backup made in the place of the database of a
// state directory whose daemon does not run. It first opens a copy of the copy,
// and changes nothing if that fails. What it replaces, with the anchors of the
// log, which know of later records, is moved to a new directory, whose path it
// returns. If it is interrupted, it can be repeated.
func Restore(ctx context.Context, dir, backup string) (replaced string, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	release, err := lock(filepath.Join(dir, "daemon.lock"))
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, release()) }()
	trial, err := os.MkdirTemp(dir, ".restore-*")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(trial)
	copied := filepath.Join(trial, databaseName)
	if err := copyDatabase(backup, copied); err != nil {
		return "", err
	}
	if err := tryDatabase(ctx, copied); err != nil {
		return "", err
	}
	// The next start records what is there then.
	known, err := openParts(dir)
	if err != nil {
		return "", err
	}
	delete(known.known, databaseName)
	delete(known.known, anchorsName)
	if known.known != nil {
		if err := known.write(); err != nil {
			return "", err
		}
	}
	if replaced, err = setAside(dir); err != nil {
		return "", err
	}
	// Until the last step there is a database. SQLite would apply a log that is
	// left to the new one.
	if err := linkIfThere(filepath.Join(dir, databaseName), filepath.Join(replaced, databaseName)); err != nil {
		return "", err
	}
	for _, name := range []string{databaseName + "-wal", databaseName + "-shm", anchorsName} {
		if err := os.Rename(filepath.Join(dir, name), filepath.Join(replaced, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	if err := os.Rename(copied, filepath.Join(dir, databaseName)); err != nil {
		return "", err
	}
	d, err := os.Open(dir)
	if err != nil {
		return "", err
	}
	return replaced, errors.Join(d.Sync(), d.Close())
}

// setAside moves files of a state directory to a new directory in it.
func setAside(dir string, names ...string) (aside string, err error) {
	aside = filepath.Join(dir, "replaced-"+time.Now().UTC().Format("20060102T150405.000Z"))
	if err := os.Mkdir(aside, 0o700); err != nil {
		return "", err
	}
	for _, name := range names {
		if err := os.Rename(filepath.Join(dir, name), filepath.Join(aside, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return aside, nil
}

func linkIfThere(from, to string) error {
	if err := os.Link(from, to); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// copyDatabase copies a file that begins like a database.
func copyDatabase(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return notBackup(from, "it cannot be read", err)
	}
	defer in.Close()
	magic := []byte("SQLite format 3\x00")
	begin := make([]byte, len(magic))
	if _, err := io.ReadFull(in, begin); err != nil || !bytes.Equal(begin, magic) {
		return notBackup(from, "it is not a copy of a database", err)
	}
	if _, err := in.Seek(0, io.SeekStart); err != nil {
		return notBackup(from, "it cannot be read", err)
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Sync(), out.Close())
}

// tryDatabase opens a copy, which updates its schema, and closes it again.
func tryDatabase(ctx context.Context, path string) error {
	s, err := store.Open(ctx, path, store.Options{})
	if err != nil {
		return err
	}
	_, err = store.Read(ctx, s, func(tx *store.Tx) (store.Tenant, error) { return tx.Tenants().Get(ctx, key.DefaultTenant) })
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		err = notBackup(path, "it is the database of something else", nil)
	}
	return errors.Join(err, s.Close())
}

func notBackup(path, why string, cause error) error {
	return &sandbox.Error{
		Code: sandbox.CodeInvalid, Op: "state.restore", Subject: path, Message: "not a usable backup: " + why, Cause: cause,
		Hint: "backups are made with: atoll state backup",
	}
}
