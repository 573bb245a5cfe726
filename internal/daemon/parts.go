package daemon

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/sandbox"
)

// partsName is the file of a state directory that lists its parts by their
// marks. A part that is missing, or has another mark, is no first start.
const partsName = "parts.json"

// lossOf says for each part of a state directory what is lost with it.
var lossOf = map[string]string{
	databaseName:    "all records are lost; sandboxes that still exist get new ones",
	"audit.key":     "cuts of the log that it sealed can no longer be verified",
	"seal.key":      "the environments of stopped sandboxes and of sessions are lost",
	"secret.key":    "stored secrets are lost",
	"workspace.key": "workspaces and saved snapshots are lost",
	anchorsName:     "records that were removed from the end of the log are not noticed",
	blobsName:       "the content of workspaces and saved snapshots is lost",
}

// markName is the file that identifies a directory.
const markName = ".part"

// parts are the parts of a state directory.
type parts struct {
	dir   string
	known map[string]string // marks of the parts by their names; nil: never recorded
}

func openParts(dir string) (*parts, error) {
	p := &parts{dir: dir}
	text, err := os.ReadFile(filepath.Join(dir, partsName))
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &p.known)
	}
	if err != nil || p.known == nil {
		return nil, &sandbox.Error{
			Code: sandbox.CodeUnavailable, Op: "daemon.start", Subject: filepath.Join(dir, partsName), Message: "the list of the parts of the state cannot be read", Cause: err,
			Hint: "if everything else is in its place: atoll state accept",
		}
	}
	return p, nil
}

// mark returns the mark of a key file or directory as it is now; empty if it is
// missing or empty.
func (p *parts) mark(name string) (string, error) {
	path := filepath.Join(p.dir, name)
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, markName)
	}
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(content) == 0 {
		return "", nil
	}
	sum := sha256.Sum256(append([]byte("atoll part\x00"), content...))
	return hex.EncodeToString(sum[:8]), err
}

// contradictions lists the parts that are not what was recorded, with what is
// wrong, before anything is opened. Unused parts are left out.
func (p *parts) contradictions(unused []string) (map[string]string, error) {
	wrong := map[string]string{}
	for name := range lossOf {
		now, err := p.mark(name)
		switch known := p.known[name]; {
		case slices.Contains(unused, name):
		case err != nil:
			return nil, err
		case name == databaseName: // its mark is inside
			if now == "" && (known != "" || p.known == nil && p.hasRun()) {
				wrong[name] = "missing"
			}
		case known != "" && now == "":
			wrong[name] = "missing"
		case known != "" && now != known:
			wrong[name] = "another one"
		}
	}
	return wrong, nil
}

// hasRun reports whether a daemon that kept no list of parts has run here. Keys
// alone may have been put here for a new daemon.
func (p *parts) hasRun() bool {
	heads, err := filepath.Glob(filepath.Join(p.dir, anchorsName, "*.head"))
	return err == nil && len(heads) > 0
}

// check refuses a state directory that contradicts itself.
func (p *parts) check(unused []string) error {
	wrong, err := p.contradictions(unused)
	if err != nil || len(wrong) == 0 {
		return err
	}
	return p.refusal(wrong)
}

func (p *parts) refusal(wrong map[string]string) error {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(wrong)) {
		words = append(words, name+" is "+wrong[name]+" ("+lossOf[name]+")")
	}
	return &sandbox.Error{
		Code: sandbox.CodeConflict, Op: "daemon.start", Subject: p.dir, Message: "this is not the state that a daemon left here: " + strings.Join(words, "; "),
		Hint: "put it back, or go back to a backup of the database with: atoll state restore FILE; if it is lost for good: atoll state accept",
	}
}

// checkDatabase refuses the database of another state directory.
func (p *parts) checkDatabase(ctx context.Context, s *store.Store) error {
	known := p.known[databaseName]
	now, err := databaseMark(ctx, s)
	if err == nil && known != "" && now != known {
		err = p.refusal(map[string]string{databaseName: "another one"})
	}
	return err
}

// databaseMark is the mark of a database, which a copy has, too.
func databaseMark(ctx context.Context, s *store.Store) (string, error) {
	t, err := store.Read(ctx, s, func(tx *store.Tx) (store.Tenant, error) { return tx.Tenants().Get(ctx, key.DefaultTenant) })
	return strconv.FormatInt(t.Created.UnixNano(), 36), err
}

// record adds parts that were not known. s is the database of the directory, nil
// if it is elsewhere.
func (p *parts) record(ctx context.Context, s *store.Store) error {
	marks := maps.Clone(p.known)
	if marks == nil {
		marks = map[string]string{}
	}
	for name := range lossOf {
		if name == databaseName || marks[name] != "" {
			continue
		}
		if err := p.identify(name); err != nil {
			return err
		}
		now, err := p.mark(name)
		if err != nil {
			return err
		}
		if now != "" {
			marks[name] = now
		}
	}
	if s != nil && marks[databaseName] == "" {
		mark, err := databaseMark(ctx, s)
		if err != nil {
			return err
		}
		marks[databaseName] = mark
	}
	if p.known != nil && maps.Equal(marks, p.known) {
		return nil
	}
	p.known = marks
	return p.write()
}

// identify gives a directory a mark.
func (p *parts) identify(name string) error {
	path := filepath.Join(p.dir, name)
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return nil // a key, or not in use
	}
	f, err := os.OpenFile(filepath.Join(path, markName), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(rand.Text() + "\n")
	return errors.Join(err, f.Sync(), f.Close())
}

func (p *parts) write() error {
	text, err := json.MarshalIndent(p.known, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(p.dir, ".parts-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(append(text, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), filepath.Join(p.dir, partsName))
}

// Accept makes the state directory of a daemon that does not run usable although
// parts of it are missing or others, and returns a sentence for each of them. If
// the database is missing, the anchors of its log are moved out of the way.
func Accept(_ context.Context, dir string) (lost []string, err error) {
	release, err := lock(filepath.Join(dir, "daemon.lock"))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, release()) }()
	p, err := openParts(dir)
	if err != nil {
		p = &parts{dir: dir}
	}
	wrong, err := p.contradictions(nil)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(wrong)) {
		lost = append(lost, name+" is "+wrong[name]+": "+lossOf[name])
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Size() == 0 {
			if err := os.Remove(path); err != nil { // a new one is made in its place
				return nil, err
			}
		}
	}
	if _, without := wrong[databaseName]; without {
		if _, err := setAside(dir, anchorsName); err != nil {
			return nil, err
		}
	}
	p.known = map[string]string{}
	return lost, p.write()
}
