package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// machine describes the hardware as far as it affects the results, without
// anything that identifies the machine.
func machine() string {
	cpu, _ := os.ReadFile("/proc/cpuinfo")
	mem, _ := os.ReadFile("/proc/meminfo")
	release, _ := os.ReadFile("/etc/os-release")
	model := value(string(cpu), "model name", ":")
	if model == "" {
		model = runtime.GOARCH
	}
	kind := ""
	if strings.Contains(string(cpu), " hypervisor") {
		kind = ", a virtual machine"
	}
	return fmt.Sprintf("%d × %s%s, %.0f GiB, Linux %s, %s, cgroup %s",
		runtime.NumCPU(), model, kind, float64(field(string(mem), "MemTotal:"))/(1<<30), kernelRelease(),
		strings.Trim(value(string(release), "PRETTY_NAME", "="), `"`), cgroupVersion())
}

// value finds a line that begins with name and returns what follows sep.
func value(text, name, sep string) string {
	for line := range strings.Lines(text) {
		k, v, found := strings.Cut(line, sep)
		if found && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func kernelRelease() string {
	var u syscall.Utsname
	if syscall.Uname(&u) != nil {
		return "unknown"
	}
	var b []byte
	for _, c := range u.Release {
		if c == 0 {
			break
		}
		b = append(b, byte(c))
	}
	// Remove the vendor's suffix, which could identify the machine.
	version, _, _ := strings.Cut(string(b), "-")
	return version
}

func cgroupVersion() string {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return "v2"
	}
	return "v1"
}

// load returns the average number of runnable processes in the last minute.
func load() string {
	text, _ := os.ReadFile("/proc/loadavg")
	one, _, _ := strings.Cut(string(text), " ")
	return one
}

// versions lists the versions of the compared programs.
func versions(ctx context.Context, b *bench) string {
	list := []string{b.atollVersion(ctx)}
	if b.docker != nil {
		if v, err := b.docker.cli.with("version", "--format", "client {{.Client.Version}} and daemon {{.Server.Version}}").output(ctx); err == nil {
			list = append(list, "Docker "+v)
		}
	}
	for _, p := range []program{{args: []string{"runc"}}, {args: []string{"bwrap"}}} {
		if v, err := p.with("--version").output(ctx); err == nil {
			line, _, _ := strings.Cut(v, "\n")
			list = append(list, line)
		}
	}
	return strings.Join(list, "; ")
}

// heading returns the date, the machine and the versions.
func (b *bench) heading(ctx context.Context, began time.Time, loadBefore string) string {
	var s strings.Builder
	fmt.Fprintf(&s, "* %s, taken in %s\n", began.UTC().Format("2 January 2006, 15:04 UTC"), time.Since(began).Round(time.Second))
	fmt.Fprintf(&s, "* %s\n", machine())
	fmt.Fprintf(&s, "* %s\n", versions(ctx, b))
	fmt.Fprintf(&s, "* processes that wanted a processor: %s in the minute before, %s in the last one\n", loadBefore, load())
	for _, note := range b.notes {
		fmt.Fprintf(&s, "* %s\n", note)
	}
	return s.String()
}
