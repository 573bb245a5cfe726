package gvisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/internal/need"
	"github.com/atoll-run/atoll/sandbox"
)

// platformProvider returns a provider for which KVM was requested. trial is a
// shell script in place of the kernel of the trial; empty: the kernel itself.
func platformProvider(t *testing.T, trial string) *Provider {
	t.Helper()
	kernel := os.Getenv(kernelEnv)
	if kernel == "" {
		t.Fatal("ATOLL_KERNEL is not set: see make test")
	}
	images, err := image.Open(filepath.Join(t.TempDir(), "images"), image.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { images.Close() })
	p, err := New(Options{StateDir: t.TempDir(), Images: images, Attached: true, Kernel: kernel, Platform: PlatformKVM})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	if trial != "" {
		dir := t.TempDir()
		p.trialKernel = filepath.Join(dir, "kernel")
		script := "#!/bin/sh\nPATH=" + dir + ":/usr/bin:/bin\n" + trial + "\n"
		err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(dir, 0o755), os.Symlink(kernel, filepath.Join(dir, argvKernel)), os.Symlink(kernel, filepath.Join(dir, argvGofer)), os.WriteFile(p.trialKernel, []byte(script), 0o755))
		if err := errors.Join(err, os.Chmod(p.trialKernel, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// nothingLeft checks that a trial has left no process and no sandbox.
func nothingLeft(t *testing.T, p *Provider) {
	t.Helper()
	if entries, err := os.ReadDir(p.sandboxes); err != nil || len(entries) > 0 {
		t.Errorf("the trial has left %v, %v", entries, err)
	}
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range all {
		line, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if strings.Contains(string(line), p.sandboxes) {
			t.Errorf("the trial has left process %s: %q", filepath.Base(filepath.Dir(file)), line)
		}
	}
}

func platformFinding(t *testing.T, p *Provider) (driver.Facts, driver.Finding) {
	t.Helper()
	facts, err := p.Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range facts.Findings {
		if f.Subject == "platform" {
			return facts, f
		}
	}
	t.Fatalf("no finding about the platform: %+v", facts.Findings)
	return facts, driver.Finding{}
}

// TestPlatformFallsBack requests KVM where a kernel hangs, or fails, with it. A
// warning says why, systrap is used, and no process of the trial is left.
func TestPlatformFallsBack(t *testing.T) {
	needKVM(t)
	setTrialTime(t, 2*time.Second)
	for name, tc := range map[string]struct{ script, want string }{
		"hangs":              {"exec sleep 600", "a kernel did not start within 2s"},
		"hangs with a child": {"sleep 600 & wait", "a kernel did not start within 2s"},
		"fails":              {"exit 3", "exit status 3"},
	} {
		t.Run(name, func(t *testing.T) {
			p := platformProvider(t, tc.script)
			facts, f := platformFinding(t, p)
			if f.Severity != driver.Warning || !strings.Contains(f.Message, "KVM was requested and is not used") || !strings.Contains(f.Message, tc.want) || f.Fix == "" {
				t.Errorf("the finding is %+v, want a warning with %q", f, tc.want)
			}
			if !facts.Available || facts.Version != EngineVersion || facts.Engine != engine {
				t.Errorf("the facts are %+v, want those of systrap", facts)
			}
			nothingLeft(t, p)
			p.trialKernel = "/nowhere" // the outcome is remembered
			if _, again := platformFinding(t, p); again != f {
				t.Errorf("the second time the finding is %+v", again)
			}
		})
	}
}

// TestPlatformWorks requests KVM where a kernel starts with it.
func TestPlatformWorks(t *testing.T) {
	needKVM(t)
	setTrialTime(t, time.Minute)
	// The kernel starts with systrap, because KVM need not work here.
	p := platformProvider(t, `name=runsc-sandbox
for a do
	shift
	case $a in
	--platform=kvm) a=--platform=systrap ;;
	gofer) name=runsc-gofer ;;
	esac
	set -- "$@" "$a"
done
exec $name "$@"`)
	facts, f := platformFinding(t, p)
	if f.Severity != driver.OK || !strings.Contains(f.Message, "gVisor uses KVM") {
		t.Errorf("the finding is %+v", f)
	}
	if facts.Version != EngineVersion+" (kvm)" || facts.Engine != engine+"+kvm" {
		t.Errorf("the facts are %+v", facts)
	}
	nothingLeft(t, p)
}

// TestPlatformOfThisMachine requests KVM and makes a sandbox, whatever the
// trial says about this machine.
func TestPlatformOfThisMachine(t *testing.T) {
	p := platformProvider(t, "")
	began := time.Now()
	_, f := platformFinding(t, p)
	t.Logf("after %v: %s: %s", time.Since(began).Round(time.Millisecond), f.Severity, f.Message)
	if f.Severity != driver.OK && f.Severity != driver.Warning {
		t.Errorf("the finding is %+v", f)
	}
	nothingLeft(t, p)
	in, err := p.Create(t.Context(), &sandbox.Spec{ID: "some", Image: "host"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := in.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	proc, err := in.Exec(t.Context(), &sandbox.Command{Shell: "exit 7"})
	if err != nil {
		t.Fatal(err)
	}
	defer proc.Close()
	if exit, err := proc.Wait(t.Context()); err != nil || exit.Code != 7 {
		t.Errorf("a command ended with %+v, %v", exit, err)
	}
}

func TestPlatformName(t *testing.T) {
	_, err := New(Options{StateDir: t.TempDir(), Images: &image.Store{}, Platform: "ptrace"})
	if sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("an unknown platform: %v, want %s", err, sandbox.CodeInvalid)
	}
	if f := (choice{platform: PlatformSystrap, why: "x"}).finding(); f.Severity != driver.Warning || !strings.Contains(fmt.Sprint(f), platformEnv) {
		t.Errorf("the finding is %+v", f)
	}
}

func setTrialTime(t *testing.T, d time.Duration) {
	t.Helper()
	usual := trialTime
	t.Cleanup(func() { trialTime = usual })
	trialTime = d
}

// needKVM skips a test of the trial itself where there is no device: the trial
// ends before it starts a kernel.
func needKVM(t *testing.T) {
	t.Helper()
	f, err := os.OpenFile(kvmDevice, os.O_RDWR, 0)
	if err != nil {
		need.Thing(t, kvmDevice, "")
	}
	f.Close()
}
