package bridgeapi

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"io"
	"path"
	"strings"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// streamBuffer is the buffer size for sending an archive.
const streamBuffer = 256 << 10

// archive rewrites the archive of a workspace. It leaves out or replaces
// members because of which clients refuse the whole archive: hard links,
// devices, links that lead out of the workspace, and invalid names.
type archive struct {
	ctx   context.Context
	files Files
	left  int // members left out that are neither devices, pipes nor sockets
}

// export writes the workspace, without files that match the patterns.
func (a *archive) export(to io.Writer, exclude []string) error {
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := a.files.Export(a.ctx, root, w, driver.ExportOptions{Exclude: exclude})
		w.CloseWithError(err)
		done <- err
	}()
	buffered := bufio.NewWriterSize(to, streamBuffer)
	err := a.rewrite(tar.NewReader(r), buffered)
	if err == nil {
		err = buffered.Flush()
	}
	r.CloseWithError(err) // ends a running export
	if exported := <-done; exported != nil && (err == nil || sandbox.CodeOf(err) == sandbox.CodeInternal) {
		return exported
	}
	return err
}

func (a *archive) rewrite(from *tar.Reader, to io.Writer) error {
	out := tar.NewWriter(to)
	for {
		head, err := from.Next()
		if errors.Is(err, io.EOF) {
			return out.Close()
		}
		if err != nil {
			return err
		}
		if err := a.member(head, from, out); err != nil {
			return err
		}
	}
}

// member writes one member, unless it is excluded.
func (a *archive) member(head *tar.Header, content io.Reader, out *tar.Writer) error {
	name, ok := relative(head.Name)
	if !ok || strings.Contains(name, `\`) || len(name) > 1 && name[1] == ':' {
		a.left++ // it leads out of the workspace, or clients parse it as a Windows path
		return nil
	}
	next := &tar.Header{
		Typeflag: head.Typeflag, Name: "./" + name, Mode: head.Mode, Uid: head.Uid, Gid: head.Gid, Uname: head.Uname, Gname: head.Gname,
		ModTime: head.ModTime.Truncate(time.Second), PAXRecords: attributes(head.PAXRecords),
	}
	switch head.Typeflag {
	case tar.TypeDir:
		if name != "" {
			next.Name += "/"
		}
		return out.WriteHeader(next)
	case tar.TypeSymlink:
		target, ok := inside(name, head.Linkname)
		if !ok {
			a.left++
			return nil
		}
		next.Linkname = target
		return out.WriteHeader(next)
	case tar.TypeReg:
		next.Size = head.Size
		return copyTo(out, next, content)
	case tar.TypeLink:
		target, ok := relative(head.Linkname)
		if !ok {
			a.left++
			return nil
		}
		return a.hardLink(next, target, out)
	}
	return nil
}

// hardLink writes a copy of the file that a member is another name of.
func (a *archive) hardLink(head *tar.Header, target string, out *tar.Writer) error {
	content, info, err := a.files.Read(a.ctx, path.Join(root, target), driver.ReadOptions{})
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return nil // it was removed meanwhile
	}
	if err != nil {
		return err
	}
	defer content.Close()
	head.Typeflag, head.Size = tar.TypeReg, info.Size
	return copyTo(out, head, io.LimitReader(content, info.Size))
}

// copyTo writes a file that may have become shorter since Stat.
func copyTo(out *tar.Writer, head *tar.Header, content io.Reader) error {
	if err := out.WriteHeader(head); err != nil {
		return err
	}
	n, err := io.Copy(out, content)
	if err == nil && n < head.Size {
		_, err = io.CopyN(out, zeros{}, head.Size-n)
	}
	return err
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// relative returns the name of a member relative to the workspace. All names
// begin with the workspace's name. A name that leads out of it is not ok: root
// inside may have replaced the guest that writes the archive.
func relative(name string) (rest string, ok bool) {
	_, rest, _ = strings.Cut(path.Clean(name), "/")
	return rest, rest != ".." && !strings.HasPrefix(rest, "../")
}

// inside converts the target of a link to a relative one below the workspace,
// if that is possible.
func inside(name, target string) (string, bool) {
	dir := path.Dir(name)
	direct := path.Join(dir, target)
	if !path.IsAbs(target) && direct != ".." && !strings.HasPrefix(direct, "../") {
		return target, target != "" && !strings.Contains(target, `\`)
	}
	at := path.Join(root, dir, target)
	if path.IsAbs(target) {
		at = path.Clean(target)
	}
	if !below(at) || strings.Contains(target, `\`) {
		return "", false
	}
	up := strings.Repeat("../", strings.Count(name, "/"))
	return path.Clean(up + strings.Join(segmentsOf(at), "/")), true
}

// attributes returns the extended attributes among the records of a member.
func attributes(records map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range records {
		if strings.HasPrefix(k, "SCHILY.xattr.") {
			out[k] = v
		}
	}
	return out
}
