package kernel

import (
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
)

// replace replaces a system call by what with returns for it.
func replace(name string, with func(usual kernel.SyscallFn) kernel.SyscallFn) {
	for _, table := range kernel.SyscallTables() {
		if number, err := table.LookupNo(name); err == nil {
			call := table.Table[number]
			call.Fn = with(call.Fn)
			table.Table[number] = call
			table.Init()
		}
	}
}

// replaceAll does so with every system call.
func replaceAll(with func(usual kernel.SyscallFn) kernel.SyscallFn) {
	for _, table := range kernel.SyscallTables() {
		for number, call := range table.Table {
			call.Fn = with(call.Fn)
			table.Table[number] = call
		}
		table.Init()
	}
}

// letGuestSetHostname lets process 1 of the sandbox, the guest, set the host
// name without CAP_SYS_ADMIN, which would also allow it to mount. The name is
// known only when a prewarmed sandbox is assigned or a snapshot is restored,
// which may be long after the start.
func letGuestSetHostname(usual kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		if t.Kernel().RootPIDNamespace().IDOfThreadGroup(t.ThreadGroup()) != 1 {
			return usual(t, sysno, args)
		}
		size := args[1].Int()
		if size < 0 || size > linux.UTSLen {
			return 0, nil, linuxerr.EINVAL
		}
		name := make([]byte, size)
		if _, err := t.CopyInBytes(args[0].Pointer(), name); err != nil {
			return 0, nil, err
		}
		t.UTSNamespace().SetHostName(t, string(name))
		return 0, nil, nil
	}
}

// fillBasicFields makes statx always fill the fields that stat(2) has, as Linux
// does, and not only the requested ones. Programs rely on it.
func fillBasicFields(usual kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		args[3].Value = uintptr(args[3].Uint() | linux.STATX_BASIC_STATS)
		return usual(t, sysno, args)
	}
}
