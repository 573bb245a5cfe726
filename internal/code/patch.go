package code

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/coding"
)

const (
	patchOp    = "files.patch"
	maxPatched = 16 << 20 // bytes of a file
	maxEdits   = 1000     // files of a patch
	maxWritten = 25 << 20 // bytes of a file that is written if its hash is as expected
)

// Write writes a file if the SHA-256 of its present content is the expected one,
// in hexadecimal. Otherwise the error is CodeConflict. Writes of this kind and
// patches of one sandbox wait for each other. Programs in the sandbox do not.
func (s *Service) Write(ctx context.Context, ref, name string, r io.Reader, opts driver.WriteOptions, expect string) (info sandbox.FileInfo, err error) {
	const op = "files.write"
	want, err := hex.DecodeString(expect)
	if err != nil || len(want) != sha256.Size {
		return info, invalid(op, "expect", "is no SHA-256 in hexadecimal")
	}
	data, err := io.ReadAll(io.LimitReader(r, maxWritten+1))
	switch {
	case err != nil:
		return info, err
	case len(data) > maxWritten:
		return info, &sandbox.Error{Code: sandbox.CodeExhausted, Op: op, Subject: name, Message: "is more than 25 MiB, which is too much to be written with a condition"}
	}
	err = s.exclusively(ctx, ref, func(ctx context.Context, files Files) error {
		conflict := &sandbox.Error{Code: sandbox.CodeConflict, Op: op, Subject: name, Message: "has changed", Hint: "read it again"}
		old, _, err := files.Read(ctx, name, driver.ReadOptions{})
		if sandbox.CodeOf(err) == sandbox.CodeNotFound {
			conflict.Message = "does not exist"
			return conflict
		}
		if err != nil {
			return err
		}
		defer old.Close()
		hash := sha256.New()
		if _, err := io.Copy(hash, old); err != nil {
			return err
		}
		if !bytes.Equal(hash.Sum(nil), want) {
			return conflict
		}
		info, err = files.Write(ctx, name, bytes.NewReader(data), opts)
		return err
	})
	return info, err
}

// exclusively opens the files of a sandbox for one caller at a time.
func (s *Service) exclusively(ctx context.Context, ref string, do func(context.Context, Files) error) error {
	found, err := s.cfg.Find(ctx, ref)
	if err != nil {
		return err
	}
	release, err := s.patching.Take(ctx, found.ID)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	sb, err := s.cfg.Open(ctx, string(found.ID))
	if err != nil {
		return err
	}
	return do(ctx, sb.Files())
}

// Patch applies a patch: either all of it or nothing. A part that does not fit
// is CodeConflict. Lines may have moved, but not changed. If a write fails, the
// files that were written before get their old content back.
func (s *Service) Patch(ctx context.Context, ref string, req coding.PatchRequest) (out coding.PatchResult, err error) {
	if err := sandbox.ValidatePath("path", req.Path); err != nil {
		return out, err
	}
	edits, err := parsePatch(req.Patch)
	if err != nil {
		return out, err
	}
	for _, e := range edits {
		if err := errors.Join(relative(patchOp, "patch", e.path), relative(patchOp, "patch", cmp.Or(e.from, e.path))); err != nil {
			return out, err
		}
	}
	err = s.exclusively(ctx, ref, func(ctx context.Context, files Files) error {
		t := &tree{files: files, root: path.Clean(req.Path), known: map[string]*node{}}
		for i := range edits {
			done, err := t.edit(ctx, &edits[i])
			if err != nil {
				return err
			}
			out.Files = append(out.Files, done)
		}
		if req.DryRun {
			return nil
		}
		return t.save(ctx)
	})
	if err != nil {
		return coding.PatchResult{}, err
	}
	return out, nil
}

// edit is what a patch does to a file.
type edit struct {
	status coding.GitChange // added, modified, deleted, renamed or copied
	path   string
	from   string // of a file that is renamed or copied
	mode   uint32 // permission bits; 0: as they are
	// apply returns the new content.
	apply func(old []byte) (content []byte, added, deleted int, err error)
}

// tree is the files that a patch is about, with its changes.
type tree struct {
	files Files
	root  string
	known map[string]*node
}

// node is a file as it was and as it will be.
type node struct {
	existed, exists bool
	old, content    []byte
	mode, oldMode   uint32 // permission bits; 0: as they are
}

func (t *tree) load(ctx context.Context, rel string) (*node, error) {
	rel = path.Clean(rel)
	if n := t.known[rel]; n != nil {
		return n, nil
	}
	n := &node{}
	r, info, err := t.files.Read(ctx, path.Join(t.root, rel), driver.ReadOptions{})
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		t.known[rel] = n
		return n, nil
	}
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if n.old, err = io.ReadAll(io.LimitReader(r, maxPatched+1)); err != nil {
		return nil, err
	}
	if len(n.old) > maxPatched {
		return nil, &sandbox.Error{Code: sandbox.CodeExhausted, Op: patchOp, Subject: rel, Message: "is more than 16 MiB"}
	}
	n.existed, n.exists, n.content, n.oldMode = true, true, n.old, info.Mode&0o7777
	t.known[rel] = n
	return n, nil
}

func conflict(subject, message string) error {
	return &sandbox.Error{Code: sandbox.CodeConflict, Op: patchOp, Subject: subject, Message: message}
}

// edit changes the tree, but no file yet.
func (t *tree) edit(ctx context.Context, e *edit) (out coding.PatchedFile, err error) {
	to, err := t.load(ctx, e.path)
	if err != nil {
		return out, err
	}
	from := to
	if e.from != "" {
		if from, err = t.load(ctx, e.from); err != nil {
			return out, err
		}
	}
	switch {
	case e.status == coding.GitAdded || e.from != "" && from != to:
		if to.exists {
			return out, conflict(e.path, "exists already")
		}
	}
	if e.status != coding.GitAdded && !from.exists {
		return out, conflict(cmp.Or(e.from, e.path), "does not exist")
	}
	out = coding.PatchedFile{Path: e.path, OldPath: e.from, Status: e.status}
	content, added, deleted, err := e.apply(from.content)
	if err != nil {
		return out, conflictOf(cmp.Or(e.from, e.path), err)
	}
	out.Additions, out.Deletions = added, deleted
	keep := cmp.Or(from.mode, from.oldMode)
	if e.status == coding.GitRenamed && from != to {
		from.exists, from.content = false, nil
	}
	if e.status == coding.GitDeleted {
		to.exists, to.content = false, nil
		return out, nil
	}
	if from == to {
		keep = to.mode
	}
	to.exists, to.content, to.mode = true, content, cmp.Or(e.mode, keep)
	return out, nil
}

func conflictOf(subject string, err error) error {
	var known *sandbox.Error
	if errors.As(err, &known) {
		return err
	}
	return conflict(subject, err.Error())
}

// save writes the changes, and takes them back if one fails.
func (t *tree) save(ctx context.Context) (err error) {
	names := slices.Sorted(maps.Keys(t.known))
	var done []string
	defer func() {
		if err == nil {
			return
		}
		ctx := context.WithoutCancel(ctx)
		for _, rel := range slices.Backward(done) {
			n := t.known[rel]
			if n.existed {
				err = errors.Join(err, t.write(ctx, rel, n.old, n.oldMode))
			} else {
				err = errors.Join(err, t.files.Remove(ctx, path.Join(t.root, rel), false))
			}
		}
	}()
	for _, rel := range names {
		if n := t.known[rel]; n.exists && (!n.existed || n.mode != 0 && n.mode != n.oldMode || !bytes.Equal(n.old, n.content)) {
			if err := t.write(ctx, rel, n.content, n.mode); err != nil {
				return err
			}
			done = append(done, rel)
		}
	}
	for _, rel := range names {
		if n := t.known[rel]; n.existed && !n.exists {
			if err := t.files.Remove(ctx, path.Join(t.root, rel), false); err != nil {
				return err
			}
			done = append(done, rel)
		}
	}
	return nil
}

func (t *tree) write(ctx context.Context, rel string, content []byte, mode uint32) error {
	_, err := t.files.Write(ctx, path.Join(t.root, rel), bytes.NewReader(content), driver.WriteOptions{Mode: mode})
	return err
}

// parsePatch reads a patch in one of the two formats.
func parsePatch(text string) ([]edit, error) {
	var edits []edit
	var err error
	if strings.HasPrefix(strings.TrimSpace(text), beginPatch) {
		edits, err = parseEnvelope(text)
	} else {
		edits, err = parseUnified(text)
	}
	switch {
	case err != nil:
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Op: patchOp, Subject: "patch", Message: err.Error()}
	case len(edits) == 0:
		return nil, invalid(patchOp, "patch", "changes nothing")
	case len(edits) > maxEdits:
		return nil, invalid(patchOp, "patch", "changes more than %d files", maxEdits)
	}
	return edits, nil
}
