package update

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/atoll-run/atoll/internal/machine"
)

// saved is a backup of the database of the machine's own daemon. A newer program
// may change the schema, which the former one does not know then.
func (p Programs) saved() string { return filepath.Join(p.Dir, "saved.db") }

// Save keeps a backup of the database for the next trial.
func (p Programs) Save(backup io.Reader) error {
	f, err := os.OpenFile(p.saved(), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, backup)
	return errors.Join(err, f.Sync(), f.Close())
}

// Restore calls restore with the backup if a trial did not succeed after it was
// made, also if it ended with this process.
func (p Programs) Restore(restore func(backup string) error) error {
	s, err := p.state()
	if err != nil || !s.Trying {
		return err
	}
	if err := restore(p.saved()); err != nil {
		return err
	}
	s.Trying = false
	return errors.Join(machine.WriteFile(p.stateFile(), s), p.unsave())
}

func (p Programs) unsave() error {
	if err := os.Remove(p.saved()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
