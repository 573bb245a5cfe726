package kernel

import (
	"testing"

	"gvisor.dev/gvisor/pkg/cpuid"
	"gvisor.dev/gvisor/pkg/sentry/arch/fpu"
)

// TestTilesAreForgotten: what gVisor keeps of a thread's registers stays what it
// was, and what it sets aside beside that goes.
func TestTilesAreForgotten(t *testing.T) {
	cpuid.Initialize()
	before := fpu.NewState()
	forgetTiles()
	forgetTiles() // which changes nothing more
	after := fpu.NewState()
	if len(after) != len(before) {
		t.Errorf("the registers take %d bytes and not %d", len(after), len(before))
	}
	const least = 4096 // for another platform
	if most := max(least, len(after)); cap(after) > most {
		t.Errorf("%d bytes are set aside for them, at most %d are wanted", cap(after), most)
	}
	if tiles := cpuid.HostFeatureSet().AMXExtendedStateSize(); tiles != 0 {
		t.Errorf("%d bytes are known of tiles", tiles)
	}
}
