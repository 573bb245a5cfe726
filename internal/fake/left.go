package fake

import (
	"strconv"

	"github.com/atoll-run/atoll/internal/fake/internal/kernel"
	"github.com/atoll-run/atoll/sandbox"
)

// leftID is the ID of a process that outlived the command that started it.
func leftID(p *kernel.Proc) string { return "o" + strconv.Itoa(p.PID) }

// left lists the processes that outlived the commands that started them.
func (i *instance) left() (list []sandbox.ProcessInfo) {
	for _, p := range i.kernel.Orphans() {
		list = append(list, sandbox.ProcessInfo{
			ID: leftID(p), PID: p.PID, Args: p.Command(), Started: p.Started, Background: true, Running: true,
		})
	}
	return list
}

// findLeft finds such a process by its ID.
func (i *instance) findLeft(id string) *kernel.Proc {
	for _, p := range i.kernel.Orphans() {
		if leftID(p) == id {
			return p
		}
	}
	return nil
}
