// Package catalog contains static knowledge about providers: their descriptors,
// the capabilities of their sandboxes, and the selection of a provider. It is
// pure.
package catalog

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/enforce"
)

// noDriver is why a known provider cannot be used.
const noDriver = "this build of Atoll has no driver for it"

var linux = OSList{Supported: []string{"linux"}, Default: "linux"}

// base returns the common part of most descriptors: Linux, files, git, no
// desktop, and a read-only terminal.
func base(name, summary string, tier Tier) Descriptor {
	return Descriptor{
		Name: name, BackendID: name, Summary: summary, Tier: tier, OS: linux,
		FileSystem: FileSystemSupport{Available: true}, Git: true,
		Terminal:      TerminalSupport{Available: true, Transport: TransportSSE},
		WorkspaceRoot: "/workspace", Persistable: true, Price: PriceFree,
		Egress: enforce.None, Verified: VerifiedNot,
		Snapshot: SnapshotSupport{Kind: SnapshotNone},
		Ports:    PortSupport{Kind: PortNone},
		Driver:   DriverSupport{Reason: noDriver},
	}
}

func hosted(name, summary string, tier Tier) Descriptor {
	d := base(name, summary, tier)
	d.Price, d.Find = PriceUse, FindByLabel
	d.Lifetime.IdleKiller = true
	if tier == TierDesktop {
		screen(&d)
	}
	return d
}

func screen(d *Descriptor) {
	d.Desktop, d.Recording = DesktopSupport{Available: true, Transport: TransportVNC}, true
}

func pty(d *Descriptor) {
	d.Terminal = TerminalSupport{Available: true, Transport: TransportPTY, PTY: true}
}

func secret(name, env string) Credential {
	return Credential{Name: name, Env: env, Required: true, Secret: true}
}

// gatewaySetting is the name of the setting with which a provider that cannot
// enforce all rules itself uses Atoll's gateway for the others.
const gatewaySetting = "gateway"

func setting(name, env string, required bool) Credential {
	return Credential{Name: name, Env: env, Required: required}
}

// isolation is what isolates the sandboxes of a system, as far as its maker says
// it. It is left out if it depends on the account or on the service that answers.
var isolation = map[string]sandbox.Isolation{
	"host": sandbox.IsolationNone, "docker": sandbox.IsolationNone, "kubernetes": sandbox.IsolationNone,
	"gvisor": sandbox.IsolationKernel, "modal": sandbox.IsolationKernel,
	"microvm": sandbox.IsolationHardware, "boxlite": sandbox.IsolationHardware, "microsandbox": sandbox.IsolationHardware, "superserve": sandbox.IsolationHardware,
}

// Known returns the descriptors of all systems that Atoll knows, by name. None
// has a driver: [Describe] sets Driver for the providers of this build.
func Known() []Descriptor {
	list := slices.Concat(localProviders(), hostedDesktops(), hostedHeadless())
	for i := range list {
		list[i].Isolation = isolation[list[i].Name]
	}
	slices.SortFunc(list, func(a, b Descriptor) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Find returns the descriptor of a provider.
func Find(name string) (d Descriptor, ok bool) {
	list := Known()
	i := slices.IndexFunc(list, func(d Descriptor) bool { return d.Name == name })
	if i < 0 {
		return d, false
	}
	return list[i], true
}

func localProviders() []Descriptor {
	gvisor := base("gvisor", "an embedded gVisor kernel per sandbox (the default)", TierDev)
	pty(&gvisor)
	gvisor.RunAs, gvisor.Fork, gvisor.Pause, gvisor.Egress = true, true, sandbox.PauseMemory, enforce.Full
	gvisor.Snapshot = SnapshotSupport{Kind: SnapshotMemory, TarFallback: true}
	gvisor.Ports = PortSupport{Kind: PortLocal, OnDemand: true}
	gvisor.Lifetime = LifetimeSupport{Suspend: true, LockFreeResume: true}
	gvisor.Find, gvisor.Verified = FindByLabel, VerifiedLive
	gvisor.Credentials = []Credential{setting("platform", "ATOLL_GVISOR_PLATFORM", false)}

	host := base("host", "a process tree of this machine, without isolation", TierDev)
	pty(&host)
	host.BackendID, host.Persistable = "unix_local", false
	host.Ports = PortSupport{Kind: PortLocal, OnDemand: true}
	host.Lifetime.LockFreeResume = true
	host.Find, host.Verified = FindByLabel, VerifiedLive

	docker := base("docker", "a container of a Docker daemon", TierDev)
	pty(&docker)
	docker.RunAs, docker.Pause, docker.Egress = true, sandbox.PauseMemory, enforce.Switch
	docker.Snapshot = SnapshotSupport{Kind: SnapshotFS, TarFallback: true}
	docker.Ports = PortSupport{Kind: PortLocal, OnDemand: true}
	docker.Lifetime = LifetimeSupport{Suspend: true, LockFreeResume: true}
	docker.Find, docker.Verified = FindByLabel, VerifiedLive
	docker.Credentials = []Credential{
		setting("host", "DOCKER_HOST", false), setting("API version", "DOCKER_API_VERSION", false), setting("certificates", "DOCKER_CERT_PATH", false),
		setting("image", "ATOLL_DOCKER_IMAGE", false), setting("network", "ATOLL_DOCKER_NETWORK", false),
	}

	microvm := base("microvm", "a virtual machine of QEMU and KVM per sandbox", TierDev)
	pty(&microvm)
	microvm.RunAs, microvm.Fork, microvm.Pause, microvm.Egress = true, true, sandbox.PauseMemory, enforce.Full
	microvm.Snapshot = SnapshotSupport{Kind: SnapshotMemory, TarFallback: true}
	microvm.Ports = PortSupport{Kind: PortLocal, OnDemand: true}
	microvm.Lifetime = LifetimeSupport{Suspend: true, LockFreeResume: true}
	microvm.Find, microvm.Verified = FindByLabel, VerifiedLive
	microvm.Credentials = []Credential{
		setting("accelerator", "ATOLL_MICROVM_ACCEL", false), setting("kernel", "ATOLL_MICROVM_KERNEL", false),
		setting("image", "ATOLL_MICROVM_IMAGE", false), setting("QEMU", "ATOLL_MICROVM_QEMU", false),
	}

	remote := base("remote", "another Atoll daemon", TierDev)
	pty(&remote)
	remote.RunAs, remote.Fork, remote.Pause, remote.Egress = true, true, sandbox.PauseMemory, enforce.HostPort
	remote.Snapshot = SnapshotSupport{Kind: SnapshotID, TarFallback: true}
	remote.Ports = PortSupport{Kind: PortTunnel, OnDemand: true}
	remote.Lifetime = LifetimeSupport{Suspend: true, LockFreeResume: true}
	remote.Find = FindByKey
	remote.Verified = VerifiedLive
	remote.Credentials = []Credential{
		setting("host", "ATOLL_REMOTE_HOST", true),
		{Name: "key", Env: "ATOLL_REMOTE_KEY", Secret: true},
		setting("key file", "ATOLL_REMOTE_KEY_FILE", false),
		setting("certificates", "ATOLL_REMOTE_CA_FILE", false), setting("provider", "ATOLL_REMOTE_PROVIDER", false),
		setting("secrets", "ATOLL_REMOTE_SECRETS", false),
	}

	fake := base("fake", "sandboxes in memory, for tests", TierDev)
	fake.Driver.Reason = "it is a part of Atoll's tests and not of the program"
	fake.Persistable = false
	fake.Lifetime.LockFreeResume = true

	none := base("none", "makes no sandboxes", TierNone)
	none.FileSystem, none.Terminal, none.Git, none.Persistable = FileSystemSupport{}, TerminalSupport{}, false, false
	none.Lifetime.LockFreeResume = true
	none.Verified = VerifiedLive

	self := base("selfhosted", "a person's own machine that runs Atoll's agent", TierDesktop)
	pty(&self)
	screen(&self)
	self.Desktop.Transport = TransportRelay
	self.WorkspaceRoot, self.Persistable, self.Permanent = "/", false, true
	self.Ports = PortSupport{Kind: PortTunnel, OnDemand: true}
	self.Lifetime.LockFreeResume, self.Verified = true, VerifiedLive
	return []Descriptor{gvisor, host, microvm, docker, remote, fake, none, self}
}

func hostedDesktops() []Descriptor {
	modal := hosted("modal", "Modal", TierDesktop)
	pty(&modal)
	modal.RunAs, modal.NativeBucketMount, modal.Egress = true, true, enforce.Host
	modal.Snapshot = SnapshotSupport{Kind: SnapshotFS, TarFallback: true}
	modal.Ports.Kind, modal.Verified = PortTunnel, VerifiedFake
	modal.Lifetime = LifetimeSupport{Hard: 24 * time.Hour, Rollover: true, IdleKiller: true, LockFreeResume: true}
	modal.Units = []Unit{{Of: "timeout", Unit: "milliseconds"}}
	modal.Credentials = []Credential{
		setting("app", "MODAL_APP_NAME", true),
		{Name: "token id", Env: "MODAL_TOKEN_ID", Secret: true, With: "token secret"},
		{Name: "token secret", Env: "MODAL_TOKEN_SECRET", Secret: true, With: "token id"},
		setting("token secret file", "MODAL_TOKEN_SECRET_FILE", false), setting("token secret command", "MODAL_TOKEN_SECRET_COMMAND", false),
		setting("environment", "MODAL_ENVIRONMENT", false), setting("API URL", "MODAL_SERVER_URL", false), setting("image", "ATOLL_MODAL_IMAGE", false),
		setting("configuration file", "MODAL_CONFIG_PATH", false), setting("profile", "MODAL_PROFILE", false),
	}

	daytona := hosted("daytona", "Daytona", TierDesktop)
	pty(&daytona)
	daytona.RunAs, daytona.Fork, daytona.Egress, daytona.Verified = true, true, enforce.Host, VerifiedFake
	daytona.Snapshot = SnapshotSupport{Kind: SnapshotID, TarFallback: true}
	daytona.Ports = PortSupport{Kind: PortTunnel, OnDemand: true}
	daytona.Units = []Unit{{Of: "timeout", Unit: "seconds"}}
	daytona.Credentials = []Credential{
		secret("API key", "DAYTONA_API_KEY"),
		setting("API key file", "DAYTONA_API_KEY_FILE", false), setting("API key command", "DAYTONA_API_KEY_COMMAND", false),
		setting("API URL", "DAYTONA_API_URL", false), setting("region", "DAYTONA_TARGET", false), setting("snapshot", "DAYTONA_SNAPSHOT", false),
	}

	runloop := hosted("runloop", "Runloop", TierDesktop)
	pty(&runloop)
	runloop.RunAs, runloop.Fork, runloop.Egress, runloop.Verified = true, true, enforce.Host, VerifiedFake
	runloop.Snapshot = SnapshotSupport{Kind: SnapshotID, TarFallback: true}
	runloop.Ports, runloop.Lifetime.Hard = PortSupport{Kind: PortTunnel, OnDemand: true}, 48*time.Hour
	runloop.Units = []Unit{{Of: "keep-alive", Unit: "seconds"}}
	runloop.Credentials = []Credential{
		secret("API key", "RUNLOOP_API_KEY"),
		setting("API key file", "RUNLOOP_API_KEY_FILE", false), setting("API key command", "RUNLOOP_API_KEY_COMMAND", false),
		setting("API URL", "RUNLOOP_BASE_URL", false), setting("blueprint", "ATOLL_RUNLOOP_BLUEPRINT", false),
	}

	e2b := hosted("e2b", "E2B, or a service that speaks its API", TierDesktop)
	pty(&e2b)
	e2b.RunAs, e2b.Fork, e2b.Egress = true, true, enforce.Host
	e2b.Snapshot = SnapshotSupport{Kind: SnapshotID, TarFallback: true}
	e2b.Ports.Kind, e2b.WorkspaceRoot = PortTunnel, "/home/user"
	e2b.Units, e2b.Verified = []Unit{{Of: "timeout", Unit: "seconds"}}, VerifiedFake
	e2b.Credentials = []Credential{
		secret("API key", "E2B_API_KEY"), setting("API key file", "E2B_API_KEY_FILE", false), setting("API key command", "E2B_API_KEY_COMMAND", false),
		setting("domain", "E2B_DOMAIN", false), setting("API URL", "E2B_API_URL", false),
		setting("sandbox URL", "E2B_SANDBOX_URL", false), setting("template", "E2B_TEMPLATE", false),
	}

	blaxel := hosted("blaxel", "Blaxel", TierDesktop)
	pty(&blaxel)
	blaxel.RunAs, blaxel.Persistable, blaxel.Egress, blaxel.Verified = true, false, enforce.Host, VerifiedFake
	blaxel.Ports = PortSupport{Kind: PortTunnel, OnDemand: true}
	blaxel.Units = []Unit{{Of: "ttl", Unit: "seconds"}}
	blaxel.Credentials = []Credential{
		secret("API key", "BL_API_KEY"), setting("API key file", "BL_API_KEY_FILE", false), setting("API key command", "BL_API_KEY_COMMAND", false),
		setting("workspace", "BL_WORKSPACE", true), setting("API URL", "BL_API_URL", false), setting("region", "BL_REGION", false),
		setting("image", "ATOLL_BLAXEL_IMAGE", false),
	}
	return []Descriptor{modal, daytona, runloop, e2b, blaxel}
}

func hostedHeadless() []Descriptor {
	cloudflare := hosted("cloudflare", "a bridge of Cloudflare's Sandbox SDK", TierHeadless)
	pty(&cloudflare)
	cloudflare.RunAs, cloudflare.Persistable, cloudflare.Verified = true, false, VerifiedFake
	cloudflare.Ports, cloudflare.Find = PortSupport{Kind: PortTunnel, OnDemand: true}, FindByName
	cloudflare.Credentials = []Credential{
		setting("worker URL", "CLOUDFLARE_SANDBOX_WORKER_URL", true),
		{Name: "API key", Env: "CLOUDFLARE_SANDBOX_API_KEY", Secret: true},
		setting("API key file", "CLOUDFLARE_SANDBOX_API_KEY_FILE", false), setting("API key command", "CLOUDFLARE_SANDBOX_API_KEY_COMMAND", false),
	}

	vercel := hosted("vercel", "Vercel Sandbox", TierHeadless)
	pty(&vercel)
	vercel.RunAs, vercel.Egress, vercel.Verified = true, enforce.Host, VerifiedFake
	vercel.Snapshot = SnapshotSupport{Kind: SnapshotID, TarFallback: true}
	vercel.Ports = PortSupport{Kind: PortTunnel, OnDemand: true}
	vercel.WorkspaceRoot, vercel.Find = "/vercel/sandbox", FindByName
	vercel.Lifetime = LifetimeSupport{Hard: 5 * time.Hour, Rollover: true, IdleKiller: true}
	vercel.Credentials = []Credential{
		secret("token", "VERCEL_TOKEN"), setting("token file", "VERCEL_TOKEN_FILE", false), setting("token command", "VERCEL_TOKEN_COMMAND", false),
		setting("project", "VERCEL_PROJECT_ID", true), setting("team", "VERCEL_TEAM_ID", true), setting("region", "VERCEL_REGION", false),
		setting("API URL", "ATOLL_VERCEL_URL", false), setting("image", "ATOLL_VERCEL_IMAGE", false), setting("session", "ATOLL_VERCEL_SESSION", false),
	}

	superserve := hosted("superserve", "Superserve", TierHeadless)
	superserve.Egress, superserve.Fork = enforce.Host, true
	superserve.Snapshot = SnapshotSupport{Kind: SnapshotID, TarFallback: true}
	superserve.Ports = PortSupport{Kind: PortPreview, OnDemand: true}
	pty(&superserve)
	superserve.RunAs, superserve.Verified = true, VerifiedFake
	superserve.Units = []Unit{{Of: "timeout", Unit: "seconds"}}
	superserve.Credentials = []Credential{
		secret("API key", "SUPERSERVE_API_KEY"),
		setting("API key file", "SUPERSERVE_API_KEY_FILE", false), setting("API key command", "SUPERSERVE_API_KEY_COMMAND", false),
		setting("control URL", "SUPERSERVE_BASE_URL", false),
		setting("data URL", "SUPERSERVE_DATA_URL", false), setting("template", "SUPERSERVE_TEMPLATE", false),
	}

	boxlite := base("boxlite", "a BoxLite server", TierHeadless)
	pty(&boxlite)
	boxlite.RunAs, boxlite.Egress, boxlite.Find, boxlite.Price = true, enforce.Host, FindByName, PriceUse
	boxlite.Snapshot = SnapshotSupport{Kind: SnapshotID, TarFallback: true}
	boxlite.Ports, boxlite.Verified = PortSupport{Kind: PortTunnel, OnDemand: true}, VerifiedFake
	boxlite.Lifetime.LockFreeResume = true
	boxlite.Units = []Unit{{Of: "timeout", Unit: "seconds"}}
	boxlite.Credentials = []Credential{
		setting("URL", "BOXLITE_REST_URL", true),
		{Name: "API key", Env: "BOXLITE_API_KEY", Secret: true},
		setting("API key file", "BOXLITE_API_KEY_FILE", false),
		setting("API key command", "BOXLITE_API_KEY_COMMAND", false), setting("path prefix", "BOXLITE_REST_PATH_PREFIX", false), setting("image", "BOXLITE_IMAGE", false),
	}

	islo := hosted("islo", "islo", TierHeadless)
	islo.Egress, islo.Find, islo.Fork = enforce.Full, FindByName, true
	islo.Snapshot = SnapshotSupport{Kind: SnapshotID, TarFallback: true}
	islo.Ports = PortSupport{Kind: PortTunnel, OnDemand: true}
	pty(&islo)
	islo.RunAs, islo.Verified = true, VerifiedFake
	islo.Units = []Unit{{Of: "timeout", Unit: "seconds"}}
	islo.Credentials = []Credential{
		secret("API key", "ISLO_API_KEY"),
		setting("API key file", "ISLO_API_KEY_FILE", false), setting("API key command", "ISLO_API_KEY_COMMAND", false),
		setting("control URL", "ISLO_BASE_URL", false), setting("compute URL", "ISLO_COMPUTE_URL", false),
		setting("image", "ISLO_IMAGE", false), setting("gateway profile", "ISLO_GATEWAY_PROFILE", false),
	}

	kubernetes := base("kubernetes", "a pod of a Kubernetes cluster", TierHeadless)
	pty(&kubernetes)
	kubernetes.RunAs, kubernetes.Persistable, kubernetes.Egress = true, false, enforce.CIDRPort
	kubernetes.Find, kubernetes.Verified = FindByLabel, VerifiedLive
	kubernetes.Ports = PortSupport{Kind: PortTunnel, OnDemand: true}
	kubernetes.Credentials = []Credential{
		setting("kubeconfig", "KUBECONFIG", false), setting("context", "ATOLL_KUBERNETES_CONTEXT", false),
		setting("namespace", "ATOLL_KUBERNETES_NAMESPACE", false), setting("image", "ATOLL_KUBERNETES_IMAGE", false),
		setting("RuntimeClass", "ATOLL_KUBERNETES_RUNTIME_CLASS", false), setting("network policy", "ATOLL_KUBERNETES_NETWORK_POLICY", false),
		setting("kind", "ATOLL_KUBERNETES_KIND", false),
		setting("pool", "ATOLL_KUBERNETES_POOL", false),
		setting(gatewaySetting, "ATOLL_KUBERNETES_GATEWAY", false), setting("pods of the gateway", "ATOLL_KUBERNETES_GATEWAY_PODS", false),
		setting("insecure", "ATOLL_KUBERNETES_INSECURE", false),
		setting("API server, in a pod", "KUBERNETES_SERVICE_HOST", false), setting("port, in a pod", "KUBERNETES_SERVICE_PORT", false),
	}

	microsandbox := hosted("microsandbox", "the cloud of microsandbox", TierHeadless)
	pty(&microsandbox)
	microsandbox.RunAs, microsandbox.Egress, microsandbox.Verified = true, enforce.Host, VerifiedFake
	microsandbox.Snapshot = SnapshotSupport{Kind: SnapshotID, TarFallback: true}
	microsandbox.Ports, microsandbox.Find = PortSupport{Kind: PortTunnel, OnDemand: true}, FindByName
	microsandbox.Units = []Unit{{Of: "maximum duration", Unit: "seconds"}}
	microsandbox.Credentials = []Credential{
		secret("API key", "MSB_API_KEY"), setting("API key file", "MSB_API_KEY_FILE", false), setting("API key command", "MSB_API_KEY_COMMAND", false),
		setting("API URL", "MSB_API_URL", false), setting("image", "ATOLL_MICROSANDBOX_IMAGE", false),
	}

	opensandbox := base("opensandbox", "an OpenSandbox server", TierHeadless)
	pty(&opensandbox)
	opensandbox.RunAs, opensandbox.Egress = true, enforce.Host
	opensandbox.Snapshot, opensandbox.Fork = SnapshotSupport{Kind: SnapshotID, TarFallback: true}, true
	opensandbox.Find, opensandbox.Price = FindByLabel, PriceUse
	opensandbox.Ports, opensandbox.Verified = PortSupport{Kind: PortTunnel, OnDemand: true}, VerifiedLive
	opensandbox.Units = []Unit{{Of: "timeout", Unit: "seconds"}}
	opensandbox.Credentials = []Credential{
		setting("domain", "OPEN_SANDBOX_DOMAIN", true),
		{Name: "API key", Env: "OPEN_SANDBOX_API_KEY", Secret: true},
		setting("API key file", "OPEN_SANDBOX_API_KEY_FILE", false), setting("API key command", "OPEN_SANDBOX_API_KEY_COMMAND", false),
		setting("image", "ATOLL_OPENSANDBOX_IMAGE", false),
	}
	return []Descriptor{cloudflare, vercel, superserve, boxlite, islo, kubernetes, microsandbox, opensandbox}
}

// CheckDescriptor reports a descriptor that contradicts itself. It is checked
// at start-up.
func CheckDescriptor(key string, d Descriptor) error {
	refuse := func(message string) error {
		return &sandbox.Error{Code: sandbox.CodeInternal, Op: "provider.register", Subject: key, Message: message}
	}
	switch {
	case d.Name != key:
		return refuse(fmt.Sprintf("its descriptor is that of %q", d.Name))
	case d.BackendID == "":
		return refuse("its descriptor has no backend id")
	case d.Desktop.Available && d.Ports.Kind == PortNone:
		return refuse("it has a desktop and exposes no port")
	case d.Desktop.Available && d.Desktop.Transport == "":
		return refuse("it has a desktop without a transport")
	case d.Desktop.Available != d.Recording:
		return refuse("it must record exactly if it has a desktop")
	case d.Persistable && d.Snapshot.Kind == SnapshotNone:
		return refuse("it is persistable and takes no snapshot")
	case d.NativeBucketMount && (d.Tier == TierDev || d.Tier == TierNone):
		return refuse("it mounts buckets and is not hosted")
	case d.Egress.Rank() < 0:
		return refuse(fmt.Sprintf("its kind of egress %q is not known", d.Egress))
	}
	return nil
}

// CheckCredentials reports missing settings of a provider. A setting may also
// come from the file or the command that another one names. It makes no network
// calls. Errors contain no values.
func CheckCredentials(d Descriptor, lookup func(env string) (string, bool)) error {
	given, from := map[string]bool{}, map[string]string{}
	for _, c := range d.Credentials {
		v, _ := lookup(c.Env)
		given[c.Name] = strings.TrimSpace(v) != ""
		for _, kind := range []string{" file", " command"} {
			if name, ok := strings.CutSuffix(c.Name, kind); ok {
				given[name] = given[name] || given[c.Name]
				from[name] += ", or " + c.Env
			}
		}
	}
	for _, c := range d.Credentials {
		switch {
		case c.Required && !given[c.Name]:
			c.Env += from[c.Name]
			return missing(d, c, "is missing")
		case c.With != "" && given[c.With] && !given[c.Name]:
			return missing(d, c, "is missing: "+c.With+" is set, and both are needed")
		}
	}
	return nil
}

func missing(d Descriptor, c Credential, message string) error {
	return &sandbox.Error{
		Code: sandbox.CodeUnavailable, Op: "provider.open", Subject: d.Name,
		Message: fmt.Sprintf("[sandbox:%s] %s %s", d.Name, c.Name, message), Hint: "set " + c.Env,
	}
}
