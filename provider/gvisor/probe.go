package gvisor

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/gvisor/cgroup"
	"github.com/atoll-run/atoll/provider/gvisor/kernel"
	"github.com/atoll-run/atoll/sandbox"
)

// Probe reports whether sandboxes can be created here, by starting a process in
// the way their kernels are started, and which of their limits are enforced.
func (p *Provider) Probe(ctx context.Context) (driver.Facts, error) {
	chosen := p.chosen()
	f := driver.Facts{
		Provider:  Name,
		Version:   EngineVersion + chosen.suffix(),
		Engine:    engineOn(chosen.platform),
		Isolates:  true,
		Isolation: sandbox.IsolationKernel,
		Capabilities: driver.Capabilities{
			Files: true, Watch: true, Archive: true, Terminal: true, Processes: true,
			Users: true, Images: true, Mounts: true, Network: p.opts.Network != nil, Reattach: !p.opts.Attached,
			Pause: true, Snapshot: true, Memory: true, Diff: true,
			Ports: true, Resize: true, Deadline: true, Usage: true, Rejoin: true,
		},
	}
	groups := p.groups()
	f.Limits = probeLimits(groups)
	checks := []func() driver.Finding{
		probePlatform,
		p.static,
		func() driver.Finding { return p.probeNamespaces() },
		func() driver.Finding { return probeGroups(groups) },
		func() driver.Finding { return probeState(p.opts.StateDir) },
		probePrivilege,
		chosen.finding,
	}
	f.Available = true
	for _, check := range checks {
		if err := ctx.Err(); err != nil {
			return f, err
		}
		finding := check()
		f.Findings = append(f.Findings, finding)
		f.Available = f.Available && finding.Severity != driver.Blocker
	}
	f.Findings = append(f.Findings, probeInternals(kernel.Items())...)
	f.Findings = append(f.Findings, probeOrphans(p.sandboxes)...)
	f.Findings = append(f.Findings, probeStopped(p.sandboxes)...)
	if why := p.pool.Disabled(); why != nil {
		f.Findings = append(f.Findings, driver.Finding{
			Severity: driver.Warning, Subject: "pool", Message: "no sandboxes are kept ready: " + why.Error(), Fix: "no action is needed: it is retried every few seconds",
		})
	}
	return f, nil
}

func probePlatform() driver.Finding {
	var u unix.Utsname
	_ = unix.Uname(&u)
	release := unix.ByteSliceToString(u.Release[:])
	f := driver.Finding{Severity: driver.OK, Subject: "host", Message: "Linux " + release + " on " + runtime.GOARCH}
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		f.Severity, f.Fix = driver.Blocker, "use a machine with an x86-64 or arm64 processor"
		return f
	}
	var major, minor int
	if n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor); n == 2 && (major < 5 || major == 5 && minor < 6) {
		f.Severity, f.Fix = driver.Blocker, "use Linux 5.6 or newer: sandboxes are followed through pidfds"
	}
	return f
}

// probeInternals reports what is disabled because it does not fit the linked
// version of gVisor.
func probeInternals(items []kernel.Item) []driver.Finding {
	var off []string
	var why error
	for _, item := range items {
		if item.Disabled != nil {
			off, why = append(off, item.Name), item.Disabled
		}
	}
	if why == nil {
		return nil
	}
	return []driver.Finding{{
		Severity: driver.Warning, Subject: "internals",
		Message: "disabled, because Atoll was built for another version of gVisor (" + why.Error() + "): " + strings.Join(off, ", "),
		Fix:     "build Atoll with gVisor " + EngineVersion + "; sandboxes work without, but take more time and memory",
	}}
}

// probeKernelFile checks that the kernel executable is static: it has to start
// in an empty root, where there is no dynamic linker.
func probeKernelFile(path string) driver.Finding {
	f := driver.Finding{Severity: driver.OK, Subject: "kernel", Message: "gVisor " + EngineVersion + " is linked in"}
	e, err := elf.Open(path)
	if err != nil {
		return driver.Finding{
			Severity: driver.Blocker, Subject: "kernel", Message: "the kernel's executable cannot be read: " + reason(err),
			Fix: "unset ATOLL_KERNEL, or point it to a static build of atoll",
		}
	}
	defer e.Close()
	if e.Section(".interp") != nil {
		f.Severity, f.Message = driver.Blocker, "this build of atoll is dynamic and cannot start in an empty root"
		f.Fix = "build it with CGO_ENABLED=0, or set ATOLL_KERNEL to a build that is static"
	}
	return f
}

func (p *Provider) probeNamespaces() driver.Finding {
	f := driver.Finding{Severity: driver.OK, Subject: "namespaces", Message: "user, mount, process and network namespaces can be made"}
	attr := namespaces(true)
	dropToNobody(attr)
	c, err := p.reaper.start(p.opts.Kernel, []string{argvProbe}, nil, nil, attr, place{})
	if err == nil {
		ended := c.waitFor(10 * time.Second)
		if c.state != nil && c.state.Success() {
			return f
		}
		c.kill()
		err = errors.New(ended)
	}
	f.Severity, f.Message = driver.Blocker, "a process cannot be started in new namespaces: "+reason(err)
	switch {
	case errors.Is(err, fs.ErrPermission) && os.Geteuid() == 0 && p.opts.Kernel != argvSelf:
		f.Fix = "put the kernel's executable where every user can execute it: " + p.opts.Kernel
	case sysctl("kernel/apparmor_restrict_unprivileged_userns") == "1":
		f.Fix = "run: sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0"
	case sysctl("kernel/unprivileged_userns_clone") == "0":
		f.Fix = "run: sudo sysctl kernel.unprivileged_userns_clone=1"
	case sysctl("user/max_user_namespaces") == "0":
		f.Fix = "run: sudo sysctl user.max_user_namespaces=10000"
	default:
		f.Fix = "allow user namespaces; in a container, allow the unshare, clone and mount system calls"
	}
	return f
}

func sysctl(name string) string {
	b, _ := os.ReadFile("/proc/sys/" + name)
	return strings.TrimSpace(string(b))
}

func probeGroups(g cgroup.Root) driver.Finding {
	f := driver.Finding{Severity: driver.OK, Subject: "cgroups", Message: fmt.Sprintf("cgroup v%d", g.Version)}
	if g.Version == 0 {
		f.Message = "no control group can be made: limits of cpus and memory do not hold"
		f.Severity = driver.Warning
	}
	if g.Why != "" {
		f.Severity = driver.Warning
		f.Message += " (" + g.Why + ")"
		f.Fix = "run as root, or let systemd delegate the cpu, memory and pids controllers to your user: run atoll with systemd-run --user --scope -p Delegate=yes"
	}
	return f
}

func probeLimits(g cgroup.Root) map[string]driver.Limit {
	by := func(ctl string) driver.Limit {
		if g.Dirs[ctl] == "" {
			return driver.Limit{Why: "no " + ctl + " control group can be made here"}
		}
		return driver.Limit{Holds: true, By: fmt.Sprintf("cgroup v%d", g.Version)}
	}
	return map[string]driver.Limit{
		"cpus":     by(cgroup.CPU),
		"memory":   by(cgroup.Memory),
		"pids":     {Holds: true, By: "the sandbox's own kernel"},
		"disk":     {Holds: true, By: "the sandbox's own kernel"},
		"lifetime": {Holds: true, By: "a timer outside the sandbox"},
	}
}

func probeState(dir string) driver.Finding {
	f := driver.Finding{Severity: driver.OK, Subject: "state", Message: dir}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return driver.Finding{Severity: driver.Blocker, Subject: "state", Message: dir + ": " + reason(err)}
	}
	free := int64(st.Bavail) * st.Bsize
	f.Message = fmt.Sprintf("%s, %d GiB free", dir, free>>30)
	if free < 1<<30 {
		f.Severity, f.Fix = driver.Warning, "free some space, or set ATOLL_STATE_DIR to another file system"
	}
	return f
}

func probePrivilege() driver.Finding {
	if os.Geteuid() == 0 {
		return driver.Finding{Severity: driver.OK, Subject: "user", Message: "root; sandboxes run as nobody"}
	}
	return driver.Finding{
		Severity: driver.Note, Subject: "user",
		Message: "not root: sandboxes run as this user in a user namespace; files shared from the host show other owners as nobody",
	}
}
