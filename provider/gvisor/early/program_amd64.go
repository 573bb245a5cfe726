package early

import "encoding/binary"

const (
	memfdCreate = 319 // the number of the system call
	closeOnExec = 1
)

// program does what unmount does.
var program = executable([]byte{
	0x31, 0xc0, // again: xor eax, eax, which is SYS_read
	0xbf, 3, 0, 0, 0, // mov edi, 3
	0x48, 0x89, 0xe6, // mov rsi, rsp
	0xba, 1, 0, 0, 0, // mov edx, 1
	0x0f, 0x05, // syscall
	0x83, 0xf8, 0xfc, // cmp eax, -EINTR
	0x74, 0xea, // je again
	0x83, 0xf8, 1, // cmp eax, 1
	0xbf, 1, 0, 0, 0, // mov edi, 1
	0x75, 0x1b, // jne end
	0xb8, 166, 0, 0, 0, // mov eax, SYS_umount2
	0x48, 0x8d, 0x3d, 0x16, 0, 0, 0, // lea rdi, [rip + proc]
	0xbe, 2, 0, 0, 0, // mov esi, MNT_DETACH
	0x0f, 0x05, // syscall
	0x31, 0xff, // xor edi, edi
	0x85, 0xc0, // test eax, eax
	0x40, 0x0f, 0x95, 0xc7, // setnz dil
	0xb8, 231, 0, 0, 0, // end: mov eax, SYS_exit_group
	0x0f, 0x05, // syscall
	'/', 'p', 'r', 'o', 'c', 0, // proc
})

// executable is an executable file of some machine code.
func executable(code []byte) []byte {
	const base, header, segment = 0x400000, 64, 56
	size := uint64(header + segment + len(code))
	f := append([]byte{0x7f, 'E', 'L', 'F', 2, 1, 1}, make([]byte, 9)...)
	to := binary.LittleEndian
	f = to.AppendUint16(f, 2)  // a program at a fixed address
	f = to.AppendUint16(f, 62) // for this processor
	f = to.AppendUint32(f, 1)
	f = to.AppendUint64(f, base+header+segment) // where it begins
	f = to.AppendUint64(f, header)
	f = to.AppendUint64(f, 0)
	f = to.AppendUint32(f, 0)
	for _, n := range []uint16{header, segment, 1, 0, 0, 0} {
		f = to.AppendUint16(f, n)
	}
	f = to.AppendUint32(f, 1) // to be mapped
	f = to.AppendUint32(f, 5) // to be read and executed
	for _, n := range []uint64{0, base, base, size, size, 0x1000} {
		f = to.AppendUint64(f, n)
	}
	return append(f, code...)
}
