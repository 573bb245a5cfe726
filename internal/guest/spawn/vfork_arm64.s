#include "textflag.h"

#define SYS_CLONE3 435

// func rawVfork(args *cloneArgs, size uintptr) (pid uintptr, errno syscall.Errno)
//
// The return address is in a register all the time, so that the new process,
// which returns first on the stack that both share, cannot overwrite it.
TEXT ·rawVfork(SB), NOSPLIT|NOFRAME, $0-32
	MOVD	args+0(FP), R0
	MOVD	size+8(FP), R1
	MOVD	$SYS_CLONE3, R8
	SVC
	CMN	$4095, R0
	BCS	failed
	MOVD	R0, pid+16(FP)
	MOVD	ZR, errno+24(FP)
	RET
failed:
	NEG	R0, R0
	MOVD	ZR, pid+16(FP)
	MOVD	R0, errno+24(FP)
	RET
