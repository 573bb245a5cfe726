package daemon

import (
	"bufio"
	"bytes"
	"compress/gzip"
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
	"strconv"
	"strings"
	"time"

	"github.com/atoll-run/atoll/internal/control/plane"
	"github.com/atoll-run/atoll/internal/server/e2bapi"
	"github.com/atoll-run/atoll/internal/store"
	"github.com/atoll-run/atoll/internal/template"
	"github.com/atoll-run/atoll/sandbox"
)

func (s e2bService) Templates(ctx context.Context) ([]e2bapi.Template, error) {
	all, err := s.plane.Templates(ctx)
	out := make([]e2bapi.Template, len(all))
	for i, t := range all {
		out[i] = e2bTemplate(t)
	}
	return out, err
}

func e2bTemplate(t store.Template) e2bapi.Template {
	return e2bapi.Template{Name: t.Name, Tag: t.Tag, Build: t.Build, Image: t.Image, CPUs: t.CPUs, Memory: t.Memory, Created: t.Created}
}

func (s e2bService) TagTemplate(ctx context.Context, ref, as string) (e2bapi.Template, error) {
	t, err := s.plane.TagTemplate(ctx, ref, as)
	return e2bTemplate(t), err
}

func (s e2bService) RemoveTemplate(ctx context.Context, ref string) error {
	return s.plane.RemoveTemplate(ctx, ref)
}

func (s e2bService) HasImage(ctx context.Context, ref string) (bool, error) {
	images, err := s.images()
	if err != nil {
		return false, err
	}
	_, err = images.Inspect(ctx, ref)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return false, nil
	}
	return err == nil, err
}

// BuildTemplate unpacks the files of every step where nobody else can see them,
// and builds.
func (s e2bService) BuildTemplate(ctx context.Context, b e2bapi.Build, tell func(e2bapi.BuildEvent)) error {
	dir, err := os.MkdirTemp(s.builds, "")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	d := &template.Description{From: b.From}
	if b.User != "" {
		d.Steps = append(d.Steps,
			template.Step{Op: template.OpUser, Args: []string{b.User}}, template.Step{Op: template.OpWorkdir, Args: []string{"/home/" + b.User}})
	}
	own := len(d.Steps)
	for i := range b.Steps {
		step, err := s.step(ctx, root, i, &b.Steps[i])
		if err != nil {
			return err
		}
		d.Steps = append(d.Steps, *step)
	}
	d.Start, d.Ready = loginScript(b.Start), loginScript(b.Ready)
	if d.Start == "" && d.Ready != "" {
		d.Start = "true" // nothing is started, and the build waits all the same
	}
	files, err := template.NewFiles(root)
	if err != nil {
		return err
	}
	first := b.Name + ":" + b.Tags[0]
	_, err = s.plane.BuildTemplate(ctx, plane.BuildRequest{
		Name: first, Description: d, Files: files, NoCache: b.Force, Login: b.Login, Network: b.Network, Build: b.ID, CPUs: b.CPUs, Memory: b.Memory,
		Log: func(e template.Event) {
			text, step := e.Text, min(max(0, e.Step-own), len(b.Steps))
			if !e.Output && step > 0 {
				text = fmt.Sprintf("[%d/%d] %s%s", step, len(b.Steps), map[bool]string{true: "CACHED "}[e.Cached], e.Text)
			}
			tell(e2bapi.BuildEvent{Time: e.Time, Step: step, Text: text, Output: e.Output})
		},
	})
	for _, tag := range b.Tags[1:] {
		if err == nil {
			_, err = s.plane.TagTemplate(ctx, first, b.Name+":"+tag)
		}
	}
	return err
}

// loginScript has a command of a template run as clients run theirs.
func loginScript(command string) string {
	if command == "" {
		return ""
	}
	return "export E2B_SANDBOX=true; exec /bin/bash -l -c '" + strings.ReplaceAll(command, "'", `'\''`) + "'"
}

// step is a step in the words of the builder.
func (s e2bService) step(ctx context.Context, root *os.Root, i int, from *e2bapi.BuildStep) (*template.Step, error) {
	bad := func(format string, args ...any) error {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "template.build", Subject: fmt.Sprintf("step %d", i+1), Message: fmt.Sprintf(format, args...)}
	}
	arg := func(n int) string {
		if n < len(from.Args) {
			return from.Args[n]
		}
		return ""
	}
	step := &template.Step{Force: from.Force, Text: strings.TrimSpace(from.Type + " " + strings.Join(from.Args, " "))}
	switch kind := strings.ToUpper(from.Type); kind {
	case "RUN":
		step.Op, step.Args, step.User = template.OpRun, []string{"/bin/bash", "-l", "-c", arg(0)}, arg(1)
	case "USER", "WORKDIR":
		step.Op, step.Args = template.Op(strings.ToLower(kind)), from.Args
	case "ENV", "ARG":
		step.Op = template.OpEnv
		for pair := range slices.Chunk(from.Args, 2) {
			if len(pair) != 2 {
				return nil, bad("a variable has no value")
			}
			step.Vars = append(step.Vars, template.Var{Name: pair[0], Value: pair[1]})
		}
		step.Text = "" // values are no news
	case "COPY", "ADD":
		sub := strconv.Itoa(i)
		if err := s.unpack(ctx, root, sub, from.FilesHash); err != nil {
			return nil, err
		}
		if src := filepath.ToSlash(filepath.Clean(arg(0))); !filepath.IsLocal(src) {
			return nil, bad("%.80q leads out of the files", arg(0))
		}
		step.Op, step.Args, step.Chown, step.AsUser = template.OpCopy, []string{sub + "/" + arg(0), arg(1)}, arg(2), true
		if mode := arg(3); mode != "" {
			bits, err := strconv.ParseUint(mode, 8, 12)
			if err != nil {
				return nil, bad("%.20q is not a mode", mode)
			}
			step.Chmod = uint32(bits)
		}
	default:
		return nil, bad("%.20q is not a type of step", from.Type)
	}
	return step, nil
}

// unpack writes uploaded files into a directory of a build.
func (s e2bService) unpack(ctx context.Context, root *os.Root, sub, hash string) error {
	path, err := s.upload(ctx, hash)
	if err != nil {
		return err
	}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "template.build", Subject: "files", Message: "the files of a step were not uploaded, or are too old"}
	}
	if err != nil {
		return err
	}
	defer f.Close()
	in := bufio.NewReader(f)
	tar := io.Reader(in)
	if magic, _ := in.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(in)
		if err != nil {
			return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "template.build", Subject: "files", Message: "are not a usable tar", Cause: err}
		}
		tar = z
	}
	if err := root.Mkdir(sub, 0o755); err != nil {
		return err
	}
	below, err := root.OpenRoot(sub)
	if err != nil {
		return err
	}
	defer below.Close()
	return template.Unpack(ctx, tar, below)
}

// Bounds of uploads. They are a cache: clients send again what is missing.
const (
	maxUpload     = 4 << 30
	maxUploads    = 16 << 30 // of one tenant
	uploadsExpire = 24 * time.Hour
)

// upload returns where the caller's tenant keeps files of a hash, which it
// alone vouches for.
func (s e2bService) upload(ctx context.Context, hash string) (string, error) {
	if sum, err := hex.DecodeString(hash); err != nil || len(sum) != sha256.Size {
		return "", &sandbox.Error{Code: sandbox.CodeInvalid, Op: "template.build", Subject: "filesHash", Message: "is not a SHA-256 in hexadecimal digits"}
	}
	tenant := sha256.Sum256([]byte(s.Tenant(ctx)))
	return filepath.Join(s.uploads, hex.EncodeToString(tenant[:16]), strings.ToLower(hash)), nil
}

func (s e2bService) HasUpload(ctx context.Context, hash string) (bool, error) {
	path, err := s.upload(ctx, hash)
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

func (s e2bService) PutUpload(ctx context.Context, hash string, r io.Reader) error {
	path, err := s.upload(ctx, hash)
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
