package atoll

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"

	"github.com/atoll-run/atoll/sandbox"
)

// Archive writes the files below /workspace to w, as a tar stream, and returns an
// envelope that names it by its digest. With both, [Sessions.ResumeFrom] of any
// daemon rebuilds the session, also when its sandbox is gone. The sandbox
// continues; it is rebuilt first if there is none. A session with workspaces is
// CodeUnsupported.
func (s *Session) Archive(ctx context.Context, w io.Writer) (sandbox.Envelope, error) {
	if len(s.info.Spec.Workspaces) > 0 {
		return sandbox.Envelope{}, &sandbox.Error{
			Code: sandbox.CodeUnsupported, Op: "session.envelope", Subject: s.Name(), Message: "its files are in workspaces, which stay with this daemon",
			Hint: "copy their files, or write the envelope without an archive",
		}
	}
	c := &counted{w: w}
	sum := sha256.New()
	both := io.MultiWriter(c, sum)
	err := s.Files().Export(ctx, sandbox.WorkspaceDir, both)
	if sandbox.CodeOf(err) == sandbox.CodeNotFound && c.n == 0 {
		err = tar.NewWriter(both).Close() // there is no such directory
	}
	if err != nil {
		return sandbox.Envelope{}, err
	}
	e, err := s.Envelope(ctx)
	if err != nil {
		return sandbox.Envelope{}, err
	}
	e.Files = &sandbox.ArchiveFile{Hash: "sha256:" + hex.EncodeToString(sum.Sum(nil)), Size: c.n}
	return e.Sealed(), nil
}

// counted counts what is written.
type counted struct {
	w io.Writer
	n int64
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// ResumeFrom is Resume with the archive that goes along with the envelope; see
// [Session.Archive]. The sandbox of the envelope is taken if the daemon can reach
// it. If that is gone, or belongs to an account or a machine that the daemon does
// not have, a sandbox is made with the files of the archive, and the receipt says
// what is lost. In the latter case the first sandbox may live on where it is.
func (s Sessions) ResumeFrom(ctx context.Context, e sandbox.Envelope, archive io.Reader, opts SessionOptions) (*Session, error) {
	if e.Files == nil {
		return nil, &sandbox.Error{
			Code: sandbox.CodeInvalid, Op: "session.resume", Subject: "envelope", Message: "names no archive that goes along with it", Hint: "write both with: atoll session envelope SESSION --archive FILE",
		}
	}
	source := &watched{r: archive}
	req, err := s.client.conn.Request(ctx, http.MethodPost, "/v1/sessions/archives", nil, source)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/x-tar")
	var sent sandbox.ArchiveFile
	err = s.client.conn.Receive(req, &sent)
	switch failed := source.failure(); {
	case err != nil && failed != nil:
		return nil, failed
	case err != nil:
		return nil, err
	case sent.Hash != e.Files.Hash:
		return nil, &sandbox.Error{
			Code: sandbox.CodeInvalid, Op: "session.resume", Subject: "archive", Message: fmt.Sprintf("is not the one that the envelope names: it has %d bytes and the digest %s, not %s", sent.Size, sent.Hash, e.Files.Hash),
		}
	}
	return s.Resume(ctx, e, opts)
}
