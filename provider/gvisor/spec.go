package gvisor

import (
	"encoding/json"
	"math"
	"path"
	"runtime"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/runsc/specutils"

	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/sandbox"
)

// capabilities are the capabilities of root inside: the set that Docker gives.
// They apply to the sandbox's own kernel and grant nothing on the host.
var capabilities = []string{
	"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID", "CAP_KILL",
	"CAP_MKNOD", "CAP_NET_BIND_SERVICE", "CAP_SETFCAP", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
}

// guestCapabilities are the guest's initial capabilities. It drops
// CAP_SYS_ADMIN before any command runs.
var guestCapabilities = append([]string{"CAP_SYS_ADMIN"}, capabilities...)

// bundle is the kernel's configuration of a sandbox: an OCI runtime
// specification and the backing of each mount.
type bundle struct {
	spec   []byte
	mounts string // --gofer-mount-confs
	binds  int
	// targets are the targets of host mounts. Processes may have files there open.
	targets []string
}

// newBundle returns the bundle of a sandbox, with disk as the size of the
// writable layer and memory in bytes. It contains no secrets: the environment
// and the command are sent over the guest's connection.
func newBundle(spec *sandbox.Spec, mounts []sandbox.Mount, img *image.Image, disk string, memory uint64) (*bundle, error) {
	s := &specs.Spec{
		Version:  "1.2.0",
		Hostname: spec.Hostname,
		Root:     &specs.Root{Path: "/"},
		Process: &specs.Process{
			Args: []string{guest.Path},
			Env:  guest.Env(),
			Cwd:  "/",
			User: specs.User{AdditionalGids: []uint32{0}}, // as root has, so that no command needs to set it
			Capabilities: &specs.LinuxCapabilities{
				Bounding: guestCapabilities, Effective: guestCapabilities, Permitted: guestCapabilities,
			},
		},
		Linux: &specs.Linux{},
		Annotations: map[string]string{
			"dev.gvisor.spec.rootfs.source":  "/rootfs",
			"dev.gvisor.spec.rootfs.type":    "erofs",
			"dev.gvisor.spec.rootfs.overlay": "dir=/",
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc"},
			{Destination: "/sys", Type: "sysfs", Options: []string{"ro"}},
			{Destination: "/dev", Type: "dev"},
			{Destination: "/dev/pts", Type: "devpts"},
			{Destination: "/dev/shm", Type: "tmpfs", Options: []string{"mode=1777", "size=" + strconv.FormatUint(memory/2, 10)}},
			{Destination: "/sys/fs/cgroup", Type: "cgroup", Options: []string{"ro"}},
			{Destination: path.Dir(guest.Path), Type: "erofs", Source: guest.Path, Options: []string{"ro"}},
		},
	}
	var targets []string
	confs := []specutils.GoferMountConf{{Lower: specutils.Erofs, Upper: specutils.AnonOverlay, Size: disk}, {Lower: specutils.Erofs}}
	bind := func(source, target string, readOnly bool) {
		opts := []string{"rbind"}
		if readOnly {
			opts = append(opts, "ro")
		}
		targets = append(targets, target)
		s.Mounts = append(s.Mounts, specs.Mount{Destination: target, Type: "bind", Source: source, Options: opts})
		confs = append(confs, specutils.GoferMountConf{Lower: specutils.Lisafs})
	}
	for i, b := range img.Binds {
		bind(b.Source, b.Target, true)
		if !slices.ContainsFunc(mounts, func(m sandbox.Mount) bool { return m.Source == b.Source }) {
			// The kernel may cache lookups in the image.
			hint := "dev.gvisor.spec.mount.image" + strconv.Itoa(i) + "."
			s.Annotations[hint+"source"] = b.Source
			s.Annotations[hint+"type"] = "bind"
			s.Annotations[hint+"share"] = "container"
		}
	}
	mounts = slices.Clone(mounts)
	// A mount below another one must come after it.
	slices.SortStableFunc(mounts, func(a, b sandbox.Mount) int {
		return strings.Count(path.Clean(a.Target), "/") - strings.Count(path.Clean(b.Target), "/")
	})
	for _, m := range mounts {
		bind(m.Source, m.Target, m.ReadOnly)
	}
	js, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	flags := specutils.GoferMountConfFlags(confs)
	return &bundle{spec: js, mounts: flags.String(), binds: len(targets), targets: targets}, nil
}

// kernelFlags returns gVisor's flags for the kernel and its file server.
func kernelFlags(platform string) []string {
	return []string{
		"--platform=" + platform,
		"--systrap-disable-syscall-patching", // see docs/design/gvisor-internals.md
		"--directfs=false",                   // the kernel process may not open host files itself
		"--network=none",                     // loopback only, until a link is handed over
		"--ignore-cgroups",                   // Atoll manages them
		"--in-sandbox-cgroup=v2",             // through which the number of processes is limited
		"--host-settings=ignore",
		"--overlay2=none",         // set per mount instead
		"--allow-suid",            // makes sudo work inside; it grants rights inside only
		"--file-access=exclusive", // no other process writes an image
		"--traceback=single",
		"--restore-spec-validation=ignore", // Atoll compares what must match
	}
}

// cpuCount returns how many processors the sandbox sees: as many as the limit
// needs, as programs that read it would decide.
func cpuCount(cpus float64) int {
	n := runtime.NumCPU()
	if cpus <= 0 {
		return n
	}
	return min(n, int(math.Ceil(cpus)))
}
