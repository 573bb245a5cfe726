package kernel

import (
	"strings"

	"gvisor.dev/gvisor/pkg/errors"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
)

// noStub is how the errors begin with which gVisor says that the host gave it no
// memory for a program's address space, or that it was killed meanwhile. They
// have no number, so the kernel would end. TestAttackForksAtLimit meets them, and
// TestWordsOfGVisor compares them with its source.
var noStub = []string{"createStub: ", "createSysmsgThread: ", "creating stub process: ", "unable to attach: "}

// translateNoStub makes a system call fail with ENOMEM then. Call it before the
// kernel starts.
func translateNoStub() {
	linuxerr.AddErrorUnwrapper(func(err error) (*errors.Error, bool) {
		for _, begin := range noStub {
			if strings.HasPrefix(err.Error(), begin) {
				return linuxerr.ENOMEM, true
			}
		}
		return nil, false
	})
}
