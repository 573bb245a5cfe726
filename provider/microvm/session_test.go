//go:build microvm

package microvm_test

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/provider/microvm"
	"github.com/atoll-run/atoll/sandbox"
)

// Sessions move between machines and the kernels of provider gvisor.
func TestSession(t *testing.T) {
	if os.Getenv("ATOLL_BIN") == "" {
		need.Thing(t, "the built program", "ATOLL_BIN does not name it; make microvm does")
	}
	opts := options(t)
	opts.Image = "dir:" + root
	open := func(string) (driver.Provider, error) { return microvm.New(opts) } // the boot files are made once
	t.Run("moved", func(t *testing.T) { hostedtest.Session(t, microvm.Name, open) })
	t.Run("moved while a client writes", func(t *testing.T) { hostedtest.Writer(t, microvm.Name, open) })
}

// thread is a line of the list below: a process or a thread of the kernel, and when
// it began, in hundredths of a second of the kernel's clock.
var thread = regexp.MustCompile(`(?m)^\d+ \((.+)\) (\d+)$`)

// BenchmarkStart makes sandboxes and says how long each stage of a start took, in
// milliseconds, as the start of certain threads shows: QEMU and its firmware, until
// the kernel's clock starts; the kernel and its drivers, until there is a source of
// random numbers; the file systems, until the disk is mounted; and the guest, until
// a first command starts.
func BenchmarkStart(b *testing.B) {
	p, err := microvm.New(options(b))
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	stages := map[string]float64{}
	for n := range b.N { // with b.Loop, Go 1.26.8 fails to compile this package
		s := spec()
		s.ID = sandbox.ID(fmt.Sprintf("start-%d-%d", b.N, n))
		began := time.Now()
		in, err := p.Create(b.Context(), &s)
		if err != nil {
			b.Fatal(err)
		}
		uptime := sh(b, in, "cat /proc/uptime")
		took := time.Since(began).Seconds()
		b.StopTimer()
		at := map[string]float64{}
		for _, m := range thread.FindAllStringSubmatch(sh(b, in, `cut -d" " -f1,2,22 /proc/[0-9]*/stat`), -1) {
			name, _, _ := strings.Cut(m[1], "/")
			at[name], _ = strconv.ParseFloat(m[2], 64)
			at[name] /= 100
		}
		if err := in.Destroy(context.WithoutCancel(b.Context())); err != nil {
			b.Fatal(err)
		}
		up, _ := strconv.ParseFloat(strings.Fields(uptime + " 0")[0], 64)
		if at["hwrng"] == 0 || at["jbd2"] == 0 || up == 0 {
			b.Fatalf("uptime %s, threads %v", uptime, at)
		}
		stages["qemu"] += took - up
		stages["kernel"] += at["hwrng"]
		stages["mounts"] += at["jbd2"] - at["hwrng"]
		stages["guest"] += up - at["jbd2"]
		b.StartTimer()
	}
	for name, sum := range stages {
		b.ReportMetric(1000*sum/float64(b.N), name+"-ms/op")
	}
}
