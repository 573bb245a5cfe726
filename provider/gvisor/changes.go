package gvisor

import (
	"errors"
	"os"
	"path/filepath"

	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"

	"github.com/atoll-run/atoll/provider/gvisor/layer"
)

// saveFiles writes the files of a paused sandbox to a snapshot.
func saveFiles(conn *urpc.Client, b box, dir string) error {
	out, err := os.OpenFile(filepath.Join(dir, snapFiles), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(withChanges(conn, b, func(s layer.Source) error { return s.Save(out) }), out.Close())
}

// withChanges calls f with the changes of a paused sandbox.
func withChanges(conn *urpc.Client, b box, f func(layer.Source) error) error {
	tree, err := memfile("tree", nil)
	if err != nil {
		return err
	}
	defer tree.Close()
	if err := saveTree(conn, tree); err != nil {
		return err
	}
	upper, err := os.Open(b.path(fileUpper))
	if err != nil {
		return err
	}
	defer upper.Close()
	return f(layer.Source{Tree: tree, Upper: upper})
}

// saveTree makes the kernel write the tree of its writable layer. The other
// output, the data and its offsets, is discarded.
func saveTree(conn *urpc.Client, tree *os.File) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	return conn.Call(boot.ContMgrFSSave, &boot.FSSaveArgs{
		FilePayload: urpc.FilePayload{Files: []*os.File{null, tree, null, null}},
	}, nil)
}
