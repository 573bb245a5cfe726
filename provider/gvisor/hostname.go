package gvisor

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
)

// setHostname gives a running sandbox another host name. That takes a power
// which nothing inside has any more, so that it is given for this alone to a
// program of a few instructions: starting a Go program there takes 15 ms.
func setHostname(ctx context.Context, dir, id, hostname string) error {
	image, err := hostnameProgram(hostname)
	if err != nil {
		return err
	}
	file, err := memfile("hostname", image)
	if err != nil {
		return err
	}
	defer file.Close()
	// A kernel takes a program only from a file that is open for reading alone.
	program, err := reopen(file)
	if err != nil {
		return err
	}
	defer program.Close()
	power := auth.CapabilitySetOf(linux.CAP_SYS_ADMIN)
	err = runInside(ctx, dir, program, &control.ExecArgs{
		Argv: []string{"hostname"}, ContainerID: id,
		Capabilities: &auth.TaskCapabilities{PermittedCaps: power, EffectiveCaps: power, BoundingCaps: power},
	}, nil)
	if err != nil {
		return fmt.Errorf("setting the host name: %w", err)
	}
	return nil
}

// hostnameProgram is a program that calls sethostname and exits with the number
// of the error, if any.
func hostnameProgram(hostname string) ([]byte, error) {
	var code []byte
	n := uint32(len(hostname))
	switch runtime.GOARCH {
	case "amd64":
		code = []byte{0x48, 0x8d, 0x3d, 23, 0, 0, 0} // lea rdi, [rip+23]: what follows the code
		code = binary.LittleEndian.AppendUint32(append(code, 0xbe), n)
		code = append(code,
			0xb8, 170, 0, 0, 0, // mov eax, SYS_sethostname
			0x0f, 0x05, // syscall
			0x89, 0xc7, // mov edi, eax
			0xf7, 0xdf, // neg edi
			0xb8, 60, 0, 0, 0, // mov eax, SYS_exit
			0x0f, 0x05, // syscall
		)
	case "arm64":
		for _, word := range []uint32{
			0x100000e0,        // adr x0, 28: what follows the code
			0xd2800001 | n<<5, // mov x1, n
			0xd2801428,        // mov x8, SYS_sethostname
			0xd4000001,        // svc 0
			0xcb0003e0,        // neg x0, x0
			0xd2800ba8,        // mov x8, SYS_exit
			0xd4000001,        // svc 0
		} {
			code = binary.LittleEndian.AppendUint32(code, word)
		}
	default:
		return nil, fmt.Errorf("no host name can be set on %s", runtime.GOARCH)
	}
	return executable(code, hostname)
}
