package layer

import (
	"archive/tar"
	"bufio"
	"bytes"
	"fmt"
	"io"
	"path"

	"github.com/atoll-run/atoll/provider/internal/netfiles"
)

// authority finds the gateway's certificate in the kernel's list of a sandbox's
// files. It returns nil if there is none.
func (s Source) authority() ([]byte, error) {
	if _, err := s.Tree.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	for tr := tar.NewReader(bufio.NewReaderSize(s.Tree, 1<<16)); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("the kernel's list of files: %w", err)
		}
		if path.Join("/", h.Name) != netfiles.FileCA || h.Typeflag != tar.TypeReg {
			continue
		}
		size, segments, err := readSegments(tr, h.Size)
		if err != nil || size > netfiles.MaxBundle {
			return nil, err
		}
		var ca bytes.Buffer
		err = content{size, segments, s.Upper}.writeTo(&ca)
		return ca.Bytes(), err
	}
}

// unplugged writes files without the gateway's authority. It belongs to a
// sandbox and its copies, and others must not trust it.
func unplugged(ca []byte) func(*tar.Writer, *tar.Header, content) error {
	return func(tw *tar.Writer, h *tar.Header, c content) error {
		name := path.Join("/", h.Name)
		if !netfiles.IsTrust(name) || c.size > netfiles.MaxBundle {
			return whole(tw, h, c)
		}
		var b bytes.Buffer
		if err := c.writeTo(&b); err != nil {
			return err
		}
		clean := netfiles.Without(name, b.Bytes(), ca)
		h.Size = int64(len(clean))
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		_, err := tw.Write(clean)
		return err
	}
}
