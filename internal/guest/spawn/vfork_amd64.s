#include "textflag.h"

#define SYS_CLONE3 435

// func rawVfork(args *cloneArgs, size uintptr) (pid uintptr, errno syscall.Errno)
//
// The new process returns first and calls others, which overwrites the return
// address on the stack that it shares with this one. A register keeps it.
TEXT ·rawVfork(SB), NOSPLIT|NOFRAME, $0-32
	MOVQ	args+0(FP), DI
	MOVQ	size+8(FP), SI
	MOVQ	$SYS_CLONE3, AX
	POPQ	R12
	SYSCALL
	PUSHQ	R12
	CMPQ	AX, $0xfffffffffffff001
	JCC	failed
	MOVQ	AX, pid+16(FP)
	MOVQ	$0, errno+24(FP)
	RET
failed:
	NEGQ	AX
	MOVQ	$0, pid+16(FP)
	MOVQ	AX, errno+24(FP)
	RET
