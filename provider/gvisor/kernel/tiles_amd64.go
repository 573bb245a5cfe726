package kernel

import (
	_ "unsafe" // for go:linkname

	"gvisor.dev/gvisor/pkg/cpuid"
)

// xsaveSize is what a thread's registers take, in bytes, and tileSize the part
// of it that is those of AMX.
//
//go:linkname xsaveSize gvisor.dev/gvisor/pkg/cpuid.xsaveSize
var xsaveSize uint32

//go:linkname tileSize gvisor.dev/gvisor/pkg/cpuid.amxTileDataSize
var tileSize uint32

// forgetTiles makes the registers of a thread smaller by those that no program
// inside can use. gVisor sets aside room for them nevertheless and, since it
// saves all of a slice up to its capacity, writes 8 kB of zeros for each thread
// when it saves its state, byte by byte, and reads them again.
func forgetTiles() {
	cpuid.Initialize()
	if tiles := uint32(cpuid.HostFeatureSet().AMXExtendedStateSize()); tiles > 0 && tiles < xsaveSize {
		xsaveSize -= tiles
		tileSize = 0
	}
}
