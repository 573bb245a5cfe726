package gvisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/image"
	"github.com/atoll-run/atoll/sandbox"
)

// The platforms of gVisor: how a kernel gets the system calls of its programs.
const (
	PlatformSystrap = "systrap"
	PlatformKVM     = "kvm"
)

// platformEnv names the platform: see FromEnvironment.
const platformEnv = "ATOLL_GVISOR_PLATFORM"

const kvmDevice = "/dev/kvm"

// trialTime limits starting a kernel to find out whether its platform works.
var trialTime = 10 * time.Second

// choice is the platform of new kernels.
type choice struct {
	platform string
	why      string        // why it is not the requested one
	took     time.Duration // the trial's
}

// FromEnvironment returns options from the variables of the environment.
func FromEnvironment(lookup func(string) string) Options {
	return Options{Platform: lookup(platformEnv)}
}

func (o *Options) choosePlatform() error {
	switch o.Platform {
	case "":
		o.Platform = PlatformSystrap
	case PlatformSystrap, PlatformKVM:
	default:
		return &sandbox.Error{
			Code: sandbox.CodeInvalid, Op: "provider.open", Subject: o.Platform, Message: "the platform of gVisor is systrap or kvm",
			Hint: "correct " + platformEnv + ", or the option platform of the provider",
		}
	}
	return nil
}

// choose returns the requested platform if a kernel starts with it, else
// PlatformSystrap. A device for KVM proves nothing: in some clouds it exists, and
// kernels hang.
func (p *Provider) choose() choice {
	if p.opts.Platform != PlatformKVM {
		return choice{platform: PlatformSystrap}
	}
	began := time.Now()
	if err := p.try(PlatformKVM); err != nil {
		slog.Warn("gVisor does not use KVM, which was requested: sandboxes use systrap", "reason", err)
		return choice{platform: PlatformSystrap, why: err.Error()}
	}
	return choice{platform: PlatformKVM, took: time.Since(began)}
}

// try starts a sandbox on a platform, reaches its guest, and ends it.
func (p *Provider) try(platform string) error {
	if err := unix.Access(kvmDevice, unix.R_OK|unix.W_OK); err != nil {
		return fmt.Errorf("%s cannot be used: %s", kvmDevice, reason(err))
	}
	img, err := p.opts.Images.Get(context.Background(), "host", image.GetOptions{})
	if err != nil {
		return err
	}
	m := p.newCreation(&sandbox.Spec{ID: warmID(), Image: "host", Resources: sandbox.Resources{Memory: 256 << 20}}, img)
	m.platform = platform
	if p.trialKernel != "" {
		m.kernel = p.trialKernel
	}
	ctx, cancel := context.WithTimeout(context.Background(), trialTime)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		err := m.start(ctx)
		if err != nil && ctx.Err() != nil {
			err = fmt.Errorf("a kernel did not start within %v", trialTime)
		}
		m.Undo() // kills its processes and waits for them
		ended <- err
	}()
	select {
	case err := <-ended:
		return err
	case <-time.After(trialTime + killTime):
		return errors.New("a kernel did not start, and cannot be killed")
	}
}

// suffix marks the version of gVisor.
func (c choice) suffix() string {
	if c.platform == PlatformKVM {
		return " (kvm)"
	}
	return ""
}

// finding says which platform kernels use.
func (c choice) finding() driver.Finding {
	f := driver.Finding{Severity: driver.Note, Subject: "platform"}
	const slow = "system calls are intercepted without KVM (systrap): programs that start many processes run several times slower than outside"
	switch {
	case c.platform == PlatformKVM:
		f.Severity, f.Message = driver.OK, fmt.Sprintf("gVisor uses KVM: a kernel started in %v", c.took.Round(time.Millisecond))
	case c.why != "":
		f.Severity, f.Message = driver.Warning, "KVM was requested and is not used: "+c.why+"; "+slow
		f.Fix = "unset " + platformEnv + ", or the option platform, or use a machine whose processor's virtualization can be used"
	default:
		f.Message = slow
		if unix.Access(kvmDevice, unix.R_OK|unix.W_OK) == nil {
			f.Message += "; " + kvmDevice + " exists and is not used: to try it, set " + platformEnv + "=kvm"
		}
	}
	return f
}

// reason returns the error of a system call without its object.
func reason(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return err.Error()
}
