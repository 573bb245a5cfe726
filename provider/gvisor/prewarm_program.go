package gvisor

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"runtime"
)

// exitProgram returns a program that only exits. The guest of a sandbox in the
// pool runs it once, because the first command of a sandbox takes twice as long
// as the second: the kernel keeps the host process of an address space for the
// next program. It reads nothing of the image.
func exitProgram() ([]byte, error) {
	var code []byte
	switch runtime.GOARCH {
	case "amd64":
		code = []byte{
			0xb8, 60, 0, 0, 0, // mov eax, SYS_exit
			0x31, 0xff, // xor edi, edi
			0x0f, 0x05, // syscall
		}
	case "arm64":
		for _, word := range []uint32{
			0xd2800000, // mov x0, 0
			0xd2800ba8, // mov x8, SYS_exit
			0xd4000001, // svc 0
		} {
			code = binary.LittleEndian.AppendUint32(code, word)
		}
	default:
		return nil, fmt.Errorf("no program can be made on %s", runtime.GOARCH)
	}
	return executable(code)
}

// executable returns an executable file with some machine code.
func executable(code []byte) ([]byte, error) {
	const base = 0x400000
	machine := elf.EM_X86_64
	if runtime.GOARCH == "arm64" {
		machine = elf.EM_AARCH64
	}
	var header elf.Header64
	var segment elf.Prog64
	start := binary.Size(header) + binary.Size(segment)
	size := uint64(start + len(code))
	header = elf.Header64{
		Ident: [elf.EI_NIDENT]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT),
		Entry: base + uint64(start), Phoff: uint64(binary.Size(header)),
		Ehsize: uint16(binary.Size(header)), Phentsize: uint16(binary.Size(segment)), Phnum: 1,
	}
	segment = elf.Prog64{
		Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X),
		Vaddr: base, Paddr: base, Filesz: size, Memsz: size, Align: 0x1000,
	}
	var b bytes.Buffer
	for _, part := range []any{header, segment, code} {
		if err := binary.Write(&b, binary.LittleEndian, part); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}
