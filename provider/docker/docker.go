// Package docker creates sandboxes as containers of a Docker daemon.
//
// The daemon creates, lists, pauses and removes containers. Commands and files
// go through Atoll's guest, which is copied into a new container and run with
// docker exec. The containers' labels are the only record: the state directory
// that created a container, its ID and the user's labels. The container's name
// tells which directory owns it now.
package docker

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/internal/guest/program"
	"github.com/atoll-run/atoll/internal/guestkit"
	"github.com/atoll-run/atoll/internal/keyed"
	"github.com/atoll-run/atoll/sandbox"
)

// Name is the name of this provider.
const Name = "docker"

// DefaultImage is the image of sandboxes that name none: a small Debian with
// Python.
const DefaultImage = "python:3.11-slim"

// Options configure the connection to the daemon.
type Options struct {
	// Dir is a directory for this provider alone, created when it is first needed.
	// Containers belong to it: another directory has to adopt them.
	Dir string
	// Host is the daemon's address, such as unix:///var/run/docker.sock or
	// tcp://host:2376. Empty: Docker's default socket.
	Host string
	// CertPath is a directory with ca.pem, cert.pem and key.pem, for TLS. The
	// daemon's certificate is always verified. Empty: no TLS.
	CertPath string
	// APIVersion fixes the version of the API. Empty: it is negotiated.
	APIVersion string
	// Image is used for sandboxes with the image "host". Empty: DefaultImage.
	Image string
	// Network is the daemon's network for sandboxes with unrestricted network
	// access. Empty: bridge.
	Network string
	// Executable is a static program that imports internal/guest/early. It serves
	// as the guest if none is embedded. Empty: the running program.
	Executable string
}

// FromEnvironment returns options from the variables of Docker's clients and
// from ATOLL_DOCKER_IMAGE and ATOLL_DOCKER_NETWORK.
func FromEnvironment(dir string, lookup func(string) string) Options {
	return Options{
		Dir: dir, Host: lookup(client.EnvOverrideHost), CertPath: lookup(client.EnvOverrideCertPath), APIVersion: lookup(client.EnvOverrideAPIVersion),
		Image: lookup("ATOLL_DOCKER_IMAGE"), Network: lookup("ATOLL_DOCKER_NETWORK"),
	}
}

// Provider creates sandboxes with a Docker daemon.
type Provider struct {
	opts Options
	api  *client.Client
	kit  guestkit.Kit
	work sync.WaitGroup // requests that continue after their callers gave up

	mu     sync.Mutex
	daemon string // the identity of the daemon; empty until requested

	saving    keyed.Locks[string] // by the IDs of snapshots
	restoring sync.RWMutex        // no snapshot is removed while sandboxes are made from snapshots
}

var (
	_ driver.Provider       = (*Provider)(nil)
	_ driver.EgressEnforcer = (*Provider)(nil)
	_ driver.Binder         = (*Provider)(nil)
	_ driver.FormerBinder   = (*Provider)(nil)
	_ driver.Adopter        = (*Provider)(nil)
	_ driver.ImageChecker   = (*Provider)(nil)
	_ driver.StateTeller    = (*Provider)(nil)
	_ driver.Instance       = (*Instance)(nil)
	_ driver.Pauser         = (*Instance)(nil)
	_ driver.Resizer        = (*Instance)(nil)
	_ driver.Meter          = (*Instance)(nil)
)

// idle is how long an unused connection to the daemon is kept.
const idle = time.Second

// New opens the provider. It makes no network call and creates no files.
func New(opts Options) (*Provider, error) {
	if opts.Dir == "" {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "docker.open", Message: "no directory given"}
	}
	opts.Host, opts.Network, opts.Image = cmp.Or(opts.Host, client.DefaultDockerHost), cmp.Or(opts.Network, "bridge"), cmp.Or(opts.Image, DefaultImage)
	if strings.HasPrefix(opts.Host, "ssh:") {
		return nil, &sandbox.Error{
			Code: sandbox.CodeUnsupported, Op: "docker.open", Subject: opts.Host, Message: "the daemon cannot be reached over SSH",
			Hint: "forward its socket with: ssh -L /tmp/docker.sock:/var/run/docker.sock HOST, and set DOCKER_HOST=unix:///tmp/docker.sock",
		}
	}
	transport := &http.Transport{
		MaxIdleConns: 16, IdleConnTimeout: idle,
		// Disable HTTP/2, which a transport would enable for TLS. The client would
		// then require it.
		TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
	}
	options := []client.Opt{client.WithHTTPClient(&http.Client{Transport: transport, CheckRedirect: client.CheckRedirect})}
	if opts.CertPath != "" {
		file := func(name string) string { return filepath.Join(opts.CertPath, name) }
		options = append(options, client.WithTLSClientConfig(file("ca.pem"), file("cert.pem"), file("key.pem")))
	}
	api, err := client.New(append(options, client.WithHost(opts.Host), client.WithAPIVersion(opts.APIVersion))...)
	if err != nil {
		return nil, &sandbox.Error{Code: sandbox.CodeInvalid, Op: "docker.open", Subject: opts.Host, Message: "the daemon cannot be used: " + clip(err.Error()), Cause: err}
	}
	p := &Provider{opts: opts, api: api}
	p.kit.Guest = func(arch string) (*program.Program, error) { return program.For(arch, opts.Executable) }
	return p, nil
}

// local reports whether the daemon has access to this machine's files.
func (p *Provider) local() bool { return strings.HasPrefix(p.opts.Host, "unix:") }

// Probe implements driver.Provider.
func (p *Provider) Probe(ctx context.Context) (driver.Facts, error) {
	facts := driver.Facts{
		Provider: Name, Isolates: true, Isolation: sandbox.IsolationNone,
		Capabilities: driver.Capabilities{
			Files: true, Watch: true, Archive: true, Terminal: true, Processes: true, Users: true, Mounts: p.local(), Reattach: true,
			Pause: true, Snapshot: true, Ports: true, Resize: true, Usage: true, Rejoin: true,
		},
		Limits: map[string]driver.Limit{
			"disk": {Why: "the daemon has no limit for the files of a container"}, "lifetime": {Holds: true, By: "the first process of the container"},
		},
	}
	info, err := p.info(ctx)
	if ctx.Err() != nil {
		return driver.Facts{}, ctx.Err()
	}
	facts.Version = info.ServerVersion
	for name, holds := range enforced(info) {
		facts.Limits[name] = driver.Limit{Holds: holds, By: "cgroup v" + info.CgroupVersion}
		if !holds {
			facts.Limits[name] = driver.Limit{Why: "the daemon does not enforce it"}
		}
	}
	facts.Available, facts.Findings = p.judge(info, err)
	return facts, nil
}

// enforced returns the limits that the daemon enforces.
func enforced(info system.Info) map[string]bool {
	return map[string]bool{"memory": info.MemoryLimit, "cpus": info.CPUCfsQuota, "pids": info.PidsLimit}
}

// judge reports whether sandboxes can be created.
func (p *Provider) judge(info system.Info, err error) (available bool, findings []driver.Finding) {
	add := func(severity driver.Severity, subject, message, fix string) {
		findings = append(findings, driver.Finding{Severity: severity, Subject: subject, Message: message, Fix: fix})
	}
	switch {
	case err != nil:
		add(driver.Blocker, "daemon", err.Error(), "start Docker, or set DOCKER_HOST")
		return false, findings
	case info.OSType != "linux":
		add(driver.Blocker, "daemon", "the daemon runs containers of "+info.OSType, "switch it to Linux containers")
		return false, findings
	}
	add(driver.OK, "daemon", fmt.Sprintf("Docker %s answers at %s", info.ServerVersion, p.opts.Host), "")
	add(driver.Warning, "isolation", "containers share the kernel of the daemon's machine", "use provider gvisor for code that you do not trust")
	if strings.HasPrefix(p.opts.Host, "tcp:") && p.opts.CertPath == "" {
		add(driver.Warning, "daemon", "the connection to the daemon is neither encrypted nor authenticated", "set DOCKER_CERT_PATH")
	}
	return true, findings
}

// ErrorCode implements driver.Provider.
func (p *Provider) ErrorCode(err error) sandbox.Code { return guest.ErrorCode(err) }

// Close implements driver.Provider. It waits for requests that continue after
// their callers gave up.
func (p *Provider) Close() error {
	p.work.Wait()
	return p.api.Close()
}
