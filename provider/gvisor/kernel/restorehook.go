package kernel

import (
	"context"

	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/state"
)

// restoreHook is saved with a kernel, so that the process that restores it
// learns about the kernel before its memory is read. It implements state.Type
// and state.SaverLoader.
type restoreHook struct{ Version uint64 }

const restoreHookKey = "atoll"

// installRestoreHook adds a hook to the kernel's snapshots.
func installRestoreHook(k *kernel.Kernel) {
	k.AddStateToCheckpoint(restoreHookKey, &restoreHook{Version: 1})
}

// StateTypeName implements state.Type.
func (*restoreHook) StateTypeName() string { return "provider/gvisor/kernel.restoreHook" }

// StateFields implements state.Type.
func (*restoreHook) StateFields() []string { return []string{"Version"} }

// StateSave implements state.SaverLoader.
func (h *restoreHook) StateSave(to state.Sink) { to.Save(0, &h.Version) }

// StateLoad implements state.SaverLoader.
func (h *restoreHook) StateLoad(ctx context.Context, from state.Source) {
	from.Load(0, &h.Version)
	if k, ok := ctx.Value(kernel.CtxKernel).(*kernel.Kernel); ok {
		running.Store(k)
	}
}
