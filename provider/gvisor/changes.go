package gvisor

import (
	"os"

	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"

	"github.com/atoll-run/atoll/provider/gvisor/layer"
)

// withChanges calls f with the changes of a paused sandbox.
func withChanges(conn *urpc.Client, b stateDir, f func(layer.Source) error) error {
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
