package archtest

import "slices"

// heavy lists packages that a small process with a start time of a few
// milliseconds must not import.
var heavy = []string{"net/http", "crypto/tls", "text/template", "html/template", "encoding/gob", "go/..."}

// vocabulary lists what a package that may reach package sandbox may reach as
// well: other types that are plain data.
var vocabulary = []string{"sandbox/operator", "sandbox/bounds", "sandbox/coding", "sandbox/durable", "sandbox/enforce", "sandbox/eventtype", "sandbox/viewing", "catalog", "internal/field"}

// controlServices lists what the control services of a daemon may reach.
var controlServices = []string{
	"sandbox", "internal/span", "driver", "catalog", "internal/engine", "internal/control/...", "internal/keyed", "internal/ops", "internal/stream", "internal/policy/...", "internal/secret", "internal/template", "internal/quota", "internal/lease", "internal/session", "internal/store", "internal/eventlog", "internal/audit", "internal/key", "internal/workspace/...", "internal/tree", "internal/blob", "internal/sparse", "internal/snapshotstore/archive", "internal/snapshotstore/tarball",
}

// sandboxRules returns the rules of the packages in internal/control/sandboxes:
// the records reach none of the others, and no operation reaches another one.
func sandboxRules() []rule {
	const dir = "internal/control/sandboxes/"
	operations := []string{dir + "access", dir + "create", dir + "expire", dir + "pause", dir + "reconcile", dir + "update"}
	all := []rule{{
		pkgs: dir + "records", only: controlServices, deny: []string{kernel + "/...", dir + "..."},
		why: "the records of sandboxes depend on none of the operations that change them",
	}}
	for _, own := range operations {
		others := slices.DeleteFunc(slices.Clone(operations), func(other string) bool { return other == own })
		all = append(all, rule{
			pkgs: own, only: controlServices, deny: append(others, kernel+"/..."),
			why: "an operation on sandboxes depends on the records, and not on other operations",
		})
	}
	return all
}

// rules implements docs/design/architecture.md, "Who may import whom". The
// first rule that matches a package applies.
var rules = append(sandboxRules(), []rule{
	{
		pkgs: "sandbox", std: true, only: []string{"internal/field", "sandbox/bounds"}, deny: []string{"os/exec", "net", "net/http"},
		why: "the vocabulary is plain data for every package",
	},
	{
		pkgs: "internal/field", std: true, only: []string{}, deny: []string{"os/exec", "net", "net/http"},
		why: "the vocabulary uses it",
	},
	{
		pkgs: "sandbox/bounds", std: true, only: []string{}, deny: []string{"os/exec", "net", "net/http"},
		why: "the vocabulary uses it",
	},
	{
		pkgs: "sandbox/...", std: true, only: []string{"sandbox/...", "internal/field"}, deny: []string{"os/exec", "net", "net/http"},
		why: "it is plain data for every package",
	},
	{
		pkgs: "driver", std: true, only: []string{"sandbox"}, deny: []string{"os/exec", "net/http"},
		why: "a provider in another module must not inherit our libraries",
	},
	{
		pkgs: "driver/drivertest", std: true, libs: []string{"go.uber.org/goleak/..."}, only: []string{"sandbox", "driver", "internal/scratch"},
		why: "the suite tests every provider and depends on none",
	},

	{
		pkgs: "internal/need/...", std: true, only: []string{"internal/need"}, deny: []string{"net", "net/http"},
		why: "tests of any package say through it what they need",
	},
	{
		pkgs: "internal/scratch", std: true, deny: []string{"os/exec", "net", "net/http"},
		why: "it creates temporary directories for any package",
	},
	{
		pkgs: "internal/guestkit",
		only: []string{"sandbox", "driver", "internal/span", "internal/guest/...", "internal/sparse"},
		deny: []string{kernel + "/...", "os/exec", "net/http"},
		why:  "every hosted driver uses it, whatever the service's protocol",
	},
	{
		pkgs: "provider/gvisor/kernel",
		only: []string{"provider/gvisor/kernel/early"},
		deny: []string{"net/http", "crypto/tls", "html/template", "database/sql", "google.golang.org/grpc/..."},
		why:  "its imports are initialised in every kernel",
	},
	{
		pkgs: "provider/gvisor/...",
		only: []string{"sandbox", "internal/span", "driver", "provider/gvisor/...", "internal/guest/...", "internal/guestkit", "internal/sparse", "internal/snapshotstore", "internal/snapshotstore/tarball", "provider/internal/identity", "provider/internal/netfiles/...", "internal/image/...", "provider/internal/proctree"},
		why:  "a provider depends on its technology, not on control or another provider",
	},
	{
		pkgs: "provider/host/...",
		only: []string{"sandbox", "internal/span", "driver", "provider/host/...", "internal/guest/...", "internal/guestkit", "internal/sparse", "provider/internal/proctree"},
		deny: []string{kernel + "/..."},
		why:  "a provider depends on its technology, not on control or another provider",
	},
	{
		pkgs: "provider/docker/...",
		only: []string{"sandbox", "internal/span", "driver", "provider/docker/...", "internal/guest/...", "internal/guestkit", "internal/keyed", "internal/sparse", "provider/internal/identity"},
		deny: []string{kernel + "/...", "os/exec", "database/sql"},
		why:  "a provider depends on its technology, not on control or another provider",
	},
	{
		pkgs: "provider/internal/netfiles/...",
		only: []string{"sandbox", "driver", "internal/span", "internal/guest/...", "internal/sparse", "provider/internal/netfiles/..."},
		deny: []string{kernel + "/...", "os/exec", "net/http"},
		why:  "it writes files through the guest of any provider",
	},
	{
		pkgs: "provider/microvm",
		only: []string{"sandbox", "internal/span", "driver", "internal/guest/...", "internal/guestkit", "internal/sparse", "internal/snapshotstore", "internal/snapshotstore/tarball", "provider/internal/...", "internal/image/..."},
		deny: []string{kernel + "/...", "database/sql"},
		why:  "a provider depends on its technology, not on control or another provider",
	},
	{
		pkgs: "provider/remote",
		only: []string{module, "admin", "sandbox", "driver", "internal/client", "internal/span", "internal/stream", "provider/internal/identity"},
		deny: []string{kernel + "/...", "os/exec", "database/sql"},
		why:  "a provider depends on its technology, not on control or another provider",
	},
	{
		pkgs: "provider/selfhosted",
		only: []string{module, "admin", "sandbox", "driver", "provider/remote", "internal/client", "internal/span", "internal/stream", "provider/internal/identity"},
		deny: []string{kernel + "/...", "os/exec", "database/sql", "github.com/nats-io/..."},
		why:  "it reaches machines through an interface",
	},
	{
		pkgs: "internal/fleet/...",
		only: []string{module, "admin", "sandbox", "driver", "provider/remote", "provider/internal/identity", "internal/..."},
		deny: []string{kernel + "/...", "internal/daemon/...", "internal/cli/...", "internal/control/..."},
		why:  "it knows the nodes by their records and their API, and uses no other service",
	},
	{
		pkgs: "internal/machine",
		only: []string{"sandbox"},
		deny: []string{kernel + "/...", "os/exec", "net/http", "database/sql", "github.com/nats-io/..."},
		why:  "the protocol does not depend on what carries its messages",
	},
	{
		pkgs: "internal/machine/local",
		only: []string{module, "admin", "sandbox", "stream", "driver", "provider/...", "internal/..."},
		deny: []string{"internal/testing/archtest", "internal/cli/..."},
		why:  "it is the daemon of a machine",
	},
	{
		pkgs: "internal/machine/agent",
		only: []string{"sandbox", "internal/machine", "internal/machine/update"},
		deny: []string{kernel + "/...", "database/sql"},
		why:  "it depends on no part of the daemon that it serves",
	},
	{
		pkgs: "internal/machine/...",
		only: []string{"sandbox", "driver", "internal/..."},
		deny: []string{kernel + "/...", "internal/daemon/...", "internal/cli/..."},
		why:  "the daemon's side of the connections to machines uses records and no other service; only its broker has a NATS server",
	},
	{
		pkgs: "provider/none",
		only: []string{"sandbox", "driver"},
		deny: []string{kernel + "/...", "os/exec", "database/sql"},
		why:  "a provider depends on its technology, not on control or another provider",
	},
	{
		pkgs: "provider/e2b/...",
		only: []string{"sandbox", "internal/span", "driver", "provider/e2b/...", "internal/guest/...", "internal/guestkit", "internal/sparse", "provider/internal/...", "internal/envd", "internal/plainproto"},
		deny: []string{kernel + "/...", "database/sql"},
		why:  "a provider depends on its technology, not on control or another provider",
	},
	{
		pkgs: "provider/boxlite/...",
		only: []string{"sandbox", "internal/span", "driver", "provider/boxlite/...", "internal/guest/...", "internal/guestkit", "internal/sparse", "provider/internal/..."},
		deny: []string{kernel + "/...", "database/sql"},
		why:  "a provider depends on its technology, not on control or another provider",
	},
	{
		pkgs: "provider/superserve/...",
		only: []string{"sandbox", "internal/span", "driver", "provider/superserve/...", "internal/guest/...", "internal/guestkit", "internal/sparse", "provider/internal/..."},
		deny: []string{kernel + "/...", "database/sql"},
		why:  "a provider depends on its technology, not on control or another provider",
	},
	{
		pkgs: "provider/islo/...",
		only: []string{"sandbox", "internal/span", "driver", "provider/islo/...", "internal/guest/...", "internal/guestkit", "internal/sparse", "provider/internal/..."},
		deny: []string{kernel + "/...", "database/sql"},
		why:  "a provider depends on its technology, not on control or another provider",
	},
	{
		pkgs: "provider/cloudflare/...",
		only: []string{"sandbox", "internal/span", "driver", "provider/cloudflare/...", "internal/guest/...", "internal/guestkit", "internal/sparse", "provider/internal/..."},
		deny: []string{kernel + "/...", "database/sql"},
		why:  "a provider depends on its technology, not on control or another provider",
	},
	{
		pkgs: "provider/blaxel/...",
		only: []string{"sandbox", "internal/span", "driver", "provider/blaxel/...", "internal/guest/...", "internal/guestkit", "internal/sparse", "provider/internal/..."},
		deny: []string{kernel + "/...", "database/sql"},
		why:  "a provider depends on its technology, not on control or another provider",
	},
	{
		pkgs: "provider/kubernetes/...",
		only: []string{"sandbox", "internal/span", "driver", "provider/kubernetes/...", "internal/guest/...", "internal/guestkit", "internal/sparse", "provider/internal/..."},
		deny: []string{kernel + "/...", "database/sql", "k8s.io/..."},
		why:  "a provider depends on its technology, not on control or another provider; Kubernetes' libraries are too large",
	},
	{
		pkgs: "provider/microsandbox/...",
		only: []string{"sandbox", "internal/span", "driver", "provider/microsandbox/...", "internal/guest/...", "internal/guestkit", "internal/sparse", "internal/cbor", "provider/internal/..."},
		deny: []string{kernel + "/...", "database/sql"},
		why:  "a provider depends on its technology, not on control or another provider",
	},
	{
		pkgs: "provider/opensandbox/...",
		only: []string{"sandbox", "internal/span", "driver", "provider/opensandbox/...", "internal/guest/...", "internal/guestkit", "internal/sparse", "provider/internal/..."},
		deny: []string{kernel + "/...", "database/sql"},
		why:  "a provider depends on its technology, not on control or another provider",
	},
	{
		pkgs: "provider/modal/...",
		only: []string{"sandbox", "internal/span", "driver", "provider/modal/...", "internal/guest/...", "internal/guestkit", "internal/sparse", "provider/internal/...", "internal/modalapi", "internal/plainproto"},
		deny: []string{kernel + "/...", "database/sql"},
		why:  "a provider depends on its technology, not on control or another provider",
	},
	{
		pkgs: "provider/runloop/...",
		only: []string{"sandbox", "internal/span", "driver", "provider/runloop/...", "internal/guest/...", "internal/guestkit", "internal/sparse", "provider/internal/..."},
		deny: []string{kernel + "/...", "database/sql"},
		why:  "a provider depends on its technology, not on control or another provider",
	},
	{
		pkgs: "provider/vercel/...",
		only: []string{"sandbox", "internal/span", "driver", "provider/vercel/...", "internal/guest/...", "internal/guestkit", "internal/sparse", "provider/internal/..."},
		deny: []string{kernel + "/...", "database/sql"},
		why:  "a provider depends on its technology, not on control or another provider",
	},
	{
		pkgs: "provider/daytona/...",
		only: []string{"sandbox", "internal/span", "driver", "provider/daytona/...", "internal/guest/...", "internal/guestkit", "internal/sparse", "provider/internal/..."},
		deny: []string{kernel + "/...", "database/sql"},
		why:  "a provider depends on its technology, not on control or another provider",
	},
	{
		pkgs: "internal/modalapi", std: true, only: []string{},
		why: "the driver of Modal and its fake import it",
	},
	{
		pkgs: "internal/testing/servicetest/...",
		only: []string{"sandbox", "driver", "internal/cbor", "internal/testing/servicetest/...", "internal/modalapi", "internal/plainproto"},
		deny: []string{kernel + "/...", "database/sql"},
		why:  "a fake service uses providers only through the driver contract, and not the service's own driver",
	},
	{
		pkgs: "internal/testing/fake/...",
		only: []string{"sandbox", "driver", "internal/testing/fake/...", "internal/sparse", "internal/snapshotstore", "internal/snapshotstore/tarball"},
		deny: []string{kernel + "/..."},
		why:  "a provider depends on its technology, not on control or another provider",
	},
	{
		pkgs: "internal/providerset",
		only: []string{"sandbox", "driver", "internal/gateway/...", "internal/image/..."},
		deny: []string{kernel + "/...", "database/sql"},
		why:  "it opens providers from a list that it gets",
	},
	{
		pkgs: "provider/all",
		only: []string{"catalog", module, "admin", "internal/client", "internal/stream", "sandbox", "internal/span", "driver", "provider/...", "internal/guest/...", "internal/guestkit", "internal/keyed", "internal/sparse", "internal/snapshotstore", "internal/snapshotstore/tarball", "internal/image/...", "internal/cbor", "internal/envd", "internal/modalapi", "internal/plainproto", "internal/providerset", "internal/gateway/...", "internal/policy", "internal/secret/...", "internal/confine", "internal/ownaddr"},
		why:  "the list of providers is the only place that imports them all",
	},

	{
		pkgs: "internal/policy", std: true, libs: []string{"golang.org/x/net/idna", "golang.org/x/text/..."},
		only: []string{"sandbox"},
		deny: []string{"net", "net/http", "os/exec", "database/sql"},
		why:  "decisions are pure: they do not depend on the machine, the network or the time",
	},
	{
		pkgs: "internal/policy/policyset",
		only: []string{"sandbox", "internal/policy"},
		deny: []string{kernel + "/...", "os/exec", "net/http", "database/sql"},
		why:  "the limits of sandboxes depend only on the text of files, not on their location",
	},
	{
		pkgs: "internal/secret/inject",
		only: []string{"sandbox", "internal/policy", "internal/secret"},
		deny: []string{kernel + "/...", "os/exec", "database/sql"},
		why:  "it only converts a request",
	},
	{
		pkgs: "internal/secret/source",
		only: []string{"sandbox", "internal/secret"},
		deny: []string{kernel + "/...", "database/sql"},
		why:  "it reads values from programs and servers, and does not depend on their use",
	},
	{
		pkgs: "internal/secret",
		only: []string{"sandbox"},
		deny: []string{kernel + "/...", "net/http", "os/exec", "database/sql"},
		why:  "values are sealed and found without network calls",
	},
	{
		pkgs: "internal/idtoken",
		only: []string{"sandbox", "internal/secret"},
		deny: []string{kernel + "/...", "net/http", "os/exec", "database/sql"},
		why:  "signing tokens needs no permission",
	},
	{
		pkgs: "internal/gateway/messages",
		only: []string{"sandbox"},
		deny: []string{kernel + "/...", "net/http", "os/exec", "database/sql"},
		why:  "both ends of the gateway's socket import it",
	},
	{
		pkgs: "internal/ownaddr", std: true, libs: []string{"golang.org/x/sys/unix"}, deny: []string{"os/exec", "net/http"},
		why: "a single system call, also made from a confined process",
	},
	{
		pkgs: "internal/confine",
		only: []string{},
		deny: []string{"net/http", "os/exec", "database/sql"},
		why:  "confining a process does not depend on what the process does",
	},
	{
		pkgs: "internal/gateway/egress",
		only: []string{"sandbox", "internal/policy", "internal/secret/...", "internal/gateway/messages", "internal/confine", "internal/ownaddr"},
		deny: []string{"os/exec", "database/sql"},
		why:  "the parser of untrusted traffic depends on the rules, not on its supervisor",
	},
	{
		pkgs: "internal/gateway/proxy",
		only: []string{"sandbox", "internal/gateway/...", "internal/policy", "internal/secret/...", "internal/confine", "internal/ownaddr"},
		deny: []string{"os/exec", "database/sql"},
		why:  "it carries what sandboxes ask for to the gateway, and decides nothing",
	},
	{
		pkgs: "internal/gateway",
		only: []string{"sandbox", "internal/gateway/messages"},
		deny: []string{kernel + "/...", "net/http", "os/exec", "database/sql"},
		why:  "the gateway's supervisor parses none of its traffic",
	},
	{
		pkgs: "internal/lease", std: true,
		only: []string{"sandbox"},
		deny: []string{"net", "net/http", "os/exec", "database/sql"},
		why:  "the state machine of leases is pure: a store runs it in its transactions, and a simulation in its own",
	},
	{
		pkgs: "catalog", std: true,
		only: []string{"sandbox"},
		deny: []string{"net", "net/http", "os/exec", "database/sql"},
		why:  "the catalog of providers is static data",
	},
	{
		pkgs: "internal/session/...",
		only: []string{"sandbox", "internal/lease", "internal/session"},
		deny: []string{kernel + "/...", "net/http", "os/exec", "database/sql"},
		why:  "sessions use sandboxes and leases through interfaces, so that a simulation can run them",
	},
	{
		pkgs: "driver/faults", std: true, only: []string{"sandbox", "driver"},
		why: "a package for tests of programs that use Atoll inherits none of its libraries",
	},
	{
		pkgs: "internal/quota",
		only: []string{"sandbox"},
		deny: []string{kernel + "/...", "net/http", "database/sql"},
		why:  "decisions are pure",
	},
	{
		pkgs: "internal/store/...",
		only: []string{"sandbox", "internal/quota", "internal/lease", "internal/store"},
		deny: []string{kernel + "/..."},
		why:  "the store depends neither on its callers nor on running sandboxes",
	},
	{
		pkgs: "internal/testing/storetest",
		only: []string{"sandbox", "internal/quota", "internal/lease", "internal/store", "internal/need"},
		why:  "it gives tests a database",
	},
	{
		pkgs: "internal/eventlog",
		only: []string{"sandbox", "internal/quota", "internal/lease", "internal/store"},
		deny: []string{kernel + "/...", "net/http"},
		why:  "the log depends only on the store",
	},
	{
		pkgs: "internal/audit",
		only: []string{"sandbox", "internal/span", "internal/quota", "internal/lease", "internal/store", "internal/eventlog", "internal/ops"},
		deny: []string{kernel + "/...", "net/http"},
		why:  "the choke point depends on the log, not on the operations that pass it",
	},
	{
		pkgs: "internal/key",
		only: []string{"sandbox", "internal/quota", "internal/lease", "internal/store", "internal/ops"},
		deny: []string{kernel + "/...", "net/http"},
		why:  "keys are stored in the store",
	},
	{
		pkgs: "internal/ops", std: true, only: []string{}, deny: []string{"os", "os/exec", "net", "net/http"},
		why: "a list of names and permissions",
	},
	{
		pkgs: "internal/control/guard",
		only: []string{"sandbox", "internal/span", "internal/ops", "internal/quota", "internal/lease", "internal/store", "internal/eventlog", "internal/audit", "internal/key"},
		deny: []string{kernel + "/..."},
		why:  "the guard of every request depends on callers and records, not on the operations",
	},
	{
		pkgs: "internal/control/lifecycle",
		only: []string{"sandbox"},
		deny: []string{kernel + "/...", "os/exec", "net", "net/http"},
		why:  "decisions are pure",
	},
	{
		pkgs: "internal/snapshotstore/tarball",
		only: []string{"sandbox", "internal/sparse"},
		deny: []string{kernel + "/...", "net/http"},
		why:  "it packs files, independent of their owner and purpose",
	},
	{
		pkgs: "internal/snapshotstore",
		only: []string{"sandbox", "driver", "internal/sparse", "internal/snapshotstore/tarball"},
		deny: []string{kernel + "/...", "net/http"},
		why:  "it stores bytes, independent of their owner and purpose",
	},
	{
		pkgs: "internal/snapshotstore/archive",
		only: []string{"sandbox", "internal/blob", "internal/sparse", "internal/workspace/...", "internal/snapshotstore/tarball"},
		deny: []string{kernel + "/...", "database/sql"},
		why:  "it stores bytes in a blob store, independent of their owner and purpose",
	},
	{
		pkgs: "internal/control/core/coretest",
		only: append([]string{"internal/testing/storetest", "internal/need"}, controlServices...),
		deny: []string{kernel + "/..."},
		why:  "it gives tests of single control services a core, and knows none of them",
	},
	{
		pkgs: "internal/control/sandboxes/sandboxtest",
		only: append([]string{"internal/testing/storetest", "internal/need"}, controlServices...),
		deny: []string{kernel + "/..."},
		why:  "it gives tests of single services of sandboxes what is below them",
	},
	{
		pkgs: "internal/control/plan",
		only: []string{"sandbox", "driver", "internal/policy", "internal/policy/policyset"},
		deny: []string{kernel + "/...", "os/exec", "net/http", "database/sql"},
		why:  "decisions are pure",
	},
	{
		pkgs: "internal/engine",
		only: []string{"sandbox", "internal/span", "driver", "internal/control/plan", "internal/policy/...", "internal/ops"},
		deny: []string{kernel + "/...", "os/exec", "net/http"},
		why:  "the engine uses providers only through the driver contract",
	},
	{
		pkgs: "internal/control/...",
		only: controlServices,
		deny: []string{kernel + "/..."},
		why:  "the control services of a daemon use providers only through the driver contract, and import no protocol",
	},
	{
		pkgs: "internal/image/...",
		only: []string{"sandbox", "internal/image/..."},
		deny: []string{kernel + "/..."},
		why:  "images are built for any provider",
	},
	{
		pkgs: "internal/blob/...",
		only: []string{"sandbox", "internal/blob"},
		deny: []string{kernel + "/...", "database/sql"},
		why:  "named blobs, whatever their meaning",
	},
	{
		pkgs: "internal/bucket/bucketfs",
		only: []string{"sandbox"},
		deny: []string{kernel + "/...", "database/sql"},
		why:  "the server of a bucket for untrusted code depends only on the bucket",
	},
	{
		pkgs: "internal/bucket/...",
		only: []string{"sandbox", "internal/blob", "internal/bucket/...", "internal/confine"},
		deny: []string{"database/sql"},
		why:  "it mounts directories, independent of their owner and purpose",
	},
	{
		pkgs: "internal/sparse", std: true, deny: []string{"os/exec", "net", "net/http"},
		why: "it handles bytes, inside sandboxes and outside",
	},
	{
		pkgs: "internal/cbor", std: true, deny: []string{"os/exec", "net", "net/http"},
		why: "it handles bytes",
	},
	{
		pkgs: "internal/offline", std: true, deny: []string{"os", "os/exec", "net", "net/http"},
		why: "it looks at text",
	},
	{
		pkgs: "internal/tree", std: true, only: []string{"sandbox", "internal/sparse"}, deny: []string{"os/exec", "net", "net/http"},
		why: "it handles files of this machine and tar streams",
	},
	{
		pkgs: "provider/internal/identity", std: true, only: []string{"sandbox", "driver"}, deny: []string{"os/exec", "net", "net/http"},
		why: "it identifies an installation or an account, for any provider",
	},
	{
		pkgs: "provider/internal/records", std: true, only: []string{"sandbox", "driver", "provider/internal/identity"}, deny: []string{"os/exec", "net", "net/http"},
		why: "it stores records of sandboxes, for any provider",
	},
	{
		pkgs: "provider/internal/rest", std: true, libs: []string{"github.com/coder/websocket/..."}, only: []string{"sandbox"}, deny: []string{"os/exec"},
		why: "it makes requests, for any provider",
	},
	{
		pkgs: "provider/internal/credential", std: true, only: []string{"sandbox"}, deny: []string{"net", "net/http"},
		why: "it reads the secret of an account, for any provider",
	},
	{
		pkgs: "provider/internal/hosted", only: []string{"sandbox", "internal/span", "driver", "internal/guest/...", "internal/guestkit", "internal/sparse", "provider/internal/..."}, deny: []string{kernel + "/..."},
		why: "it is the common part of the providers of services",
	},
	{
		pkgs: "provider/internal/hostedtest", only: []string{module, "admin", "ctxsandbox", "sandbox", "stream", "driver", "driver/drivertest", "driver/faults", "internal/...", "provider/..."},
		why: "it provides sandboxes of fakes and daemons, for the tests of any provider",
	},
	{
		pkgs: "provider/internal/rpc", only: []string{"sandbox", "internal/plainproto", "provider/internal/rest"}, deny: []string{kernel + "/...", "os/exec"},
		why: "it calls methods over gRPC, for any provider",
	},
	{
		pkgs: "provider/internal/wsexec", only: []string{}, deny: []string{kernel + "/...", "os/exec"},
		why: "it connects to commands of a service, for any provider",
	},
	{
		pkgs: "provider/internal/proctree", std: true, deny: []string{"os/exec", "net", "net/http"},
		why: "it reads /proc, for any provider",
	},
	{
		pkgs: "internal/template",
		only: []string{"sandbox"},
		deny: []string{kernel + "/...", "net/http", "os/exec"},
		why:  "a builder uses images and sandboxes through its own interfaces",
	},
	{
		pkgs: "internal/workspace/...",
		only: []string{"sandbox", "internal/blob/...", "internal/workspace/..."},
		deny: []string{kernel + "/...", "database/sql"},
		why:  "a workspace is a directory and a blob store, independent of its owner",
	},
	{
		pkgs: "internal/guest/early",
		only: []string{"sandbox", "internal/guest/...", "internal/sparse"},
		deny: append([]string{kernel + "/...", "internal/guest"}, heavy...),
		why:  "the program in a sandbox starts first and stays small",
	},
	{
		pkgs: "internal/guest/agent/...",
		only: []string{"sandbox", "internal/guest/...", "internal/sparse"},
		deny: append([]string{kernel + "/...", "internal/guest"}, heavy...),
		why:  "the program in a sandbox starts first and stays small",
	},
	{
		pkgs: "cmd/atoll-guest",
		only: []string{"sandbox", "internal/guest/...", "internal/sparse"},
		deny: append([]string{kernel + "/...", "internal/guest", "internal/guest/program"}, heavy...),
		why:  "every sandbox has one, and it is uploaded to some",
	},
	{
		pkgs: "internal/guest/spawn",
		std:  true,
		deny: append([]string{kernel + "/...", "os"}, heavy...),
		why:  "between clone and exec the Go runtime must not be used",
	},
	{
		pkgs: "internal/guest/...",
		only: []string{"sandbox", "internal/span", "driver", "internal/guest/...", "internal/sparse"},
		deny: append([]string{kernel + "/..."}, heavy...),
		why:  "the guest's client serves any provider",
	},

	{
		pkgs: "stream", std: true, deny: []string{"net", "net/http", "os/exec"},
		why: "programs that view streams import it; it only signs and verifies",
	},
	{
		pkgs: "internal/view/...",
		only: []string{"internal/view/...", "internal/blob", "internal/secret", "sandbox", "driver", "stream", "internal/stream", "internal/span", "internal/ops", "internal/quota", "internal/lease", "internal/store", "internal/eventlog", "internal/audit", "internal/key", "internal/control/guard"},
		deny: []string{kernel + "/..."},
		why:  "it sees sandboxes through the interfaces that it declares",
	},
	{
		pkgs: "internal/desk",
		only: []string{"sandbox", "driver", "internal/span", "internal/ops", "internal/quota", "internal/lease", "internal/store", "internal/eventlog", "internal/audit", "internal/key", "internal/control/guard"},
		deny: []string{kernel + "/..."},
		why:  "it sees sandboxes through the interfaces that it declares",
	},
	{
		pkgs: "internal/code",
		only: []string{"sandbox", "driver", "internal/keyed", "internal/serial", "internal/span", "internal/ops", "internal/quota", "internal/lease", "internal/store", "internal/eventlog", "internal/audit", "internal/key", "internal/control/guard"},
		deny: []string{kernel + "/..."},
		why:  "it sees sandboxes through the interfaces that it declares",
	},
	{
		pkgs: "internal/interpreter",
		only: []string{"sandbox", "driver", "internal/keyed", "internal/span", "internal/ops", "internal/quota", "internal/lease", "internal/store", "internal/eventlog", "internal/audit", "internal/key", "internal/control/guard"},
		deny: []string{kernel + "/..."},
		why:  "it sees sandboxes through the interfaces that it declares",
	},
	{
		pkgs: "internal/stream",
		only: []string{"sandbox"},
		deny: []string{kernel + "/..."},
		why:  "both ends of a stream import it, clients too",
	},
	{
		pkgs: "internal/plainproto", std: true, libs: []string{"google.golang.org/protobuf/..."}, only: []string{},
		why: "protocols of any package are encoded with it",
	},
	{
		pkgs: "internal/envd",
		only: []string{"internal/plainproto"},
		deny: []string{kernel + "/..."},
		why:  "both ends of E2B's protocol import it",
	},
	{
		pkgs: "internal/server/...",
		only: []string{"sandbox", "internal/span", "internal/ops", "driver", "internal/stream", "internal/offline", "internal/envd", "internal/plainproto", "internal/keyed", "internal/serial", "internal/template", "internal/server/..."},
		deny: []string{kernel + "/...", "database/sql", "os/exec"},
		why:  "a protocol declares the interfaces it needs of control, and does not import it",
	},
	{
		pkgs: module, // the Go library
		only: []string{"sandbox", "admin", "internal/client", "internal/stream", "internal/span"},
		deny: []string{kernel + "/...", "os/exec", "database/sql"},
		why:  "clients are light: no engine, no store, no daemon",
	},
	{
		pkgs: "internal/mcpserver",
		only: []string{module, "admin", "internal/client", "internal/stream", "internal/offline", "internal/ops", "internal/span", "sandbox"},
		deny: []string{kernel + "/...", "database/sql"},
		why:  "it is a client of the daemon, so that keys and policies hold for it",
	},
	{
		pkgs: "ctxsandbox",
		only: []string{module, "admin", "internal/client", "internal/stream", "internal/span", "sandbox"},
		deny: []string{kernel + "/...", "os/exec"},
		why:  "it is the client library under other names",
	},
	{
		pkgs: "examples/...",
		only: []string{module, "admin", "ctxsandbox", "internal/client", "internal/stream", "internal/span", "sandbox"},
		deny: []string{kernel + "/..."},
		why:  "examples use what users can use",
	},
	{
		pkgs: "admin",
		only: []string{"sandbox", "internal/client"},
		deny: []string{kernel + "/...", "os/exec", "database/sql"},
		why:  "clients are light: no engine, no store, no daemon",
	},
	{
		pkgs: "internal/client",
		only: []string{"sandbox"},
		deny: []string{kernel + "/...", "os/exec", "database/sql"},
		why:  "clients are light: no engine, no store, no daemon",
	},
	{
		pkgs: "internal/serial", std: true, only: []string{}, deny: []string{"os/exec", "net", "net/http"},
		why: "services and protocols number with it",
	},
	{
		pkgs: "internal/keyed", std: true, only: []string{}, deny: []string{"os/exec", "net", "net/http"},
		why: "faces and control share it",
	},
	{
		pkgs: "internal/span", std: true, only: []string{"sandbox"}, deny: []string{"os/exec", "net", "net/http"},
		why: "all packages on the path of a request import it, including the engine",
	},
	{
		pkgs: "internal/telemetry",
		only: []string{"sandbox", "internal/span", "internal/eventlog", "internal/lease", "internal/store", "internal/quota", "internal/ops"},
		deny: []string{kernel + "/..."},
		why:  "it only exports data, and is the only package that imports OpenTelemetry",
	},
	{
		pkgs: "internal/metrics",
		only: []string{"sandbox"},
		deny: []string{kernel + "/..."},
		why:  "callers decide what to count",
	},
	{
		pkgs: "internal/daemon/...",
		only: []string{module, "admin", "sandbox", "stream", "driver", "driver/drivertest", "provider/...", "internal/..."},
		deny: []string{"internal/testing/archtest"},
		why:  "the only package that imports everything",
	},
	{
		pkgs: "driver/machinetest", only: []string{module, "admin", "sandbox", "stream", "driver", "provider/...", "internal/..."},
		why: "it is the program of a machine, with sandboxes in memory",
	},
	{
		pkgs: "atolld",
		only: []string{module, "admin", "sandbox", "stream", "driver", "provider/...", "internal/..."},
		deny: []string{"driver/drivertest", "internal/cli/...", "internal/testing/fake", "internal/testing/servicetest/...", "testing", "github.com/spf13/..."},
		why:  "a program that embeds the daemon gets neither the command line nor the tests",
	},

	{
		pkgs: "internal/statedir",
		only: []string{"sandbox"},
		deny: []string{kernel + "/...", "os/exec", "net", "net/http", "database/sql"},
		why:  "the engine and programs without it find the same directory",
	},
	{
		pkgs: "internal/unpack/...",
		only: []string{"sandbox", "internal/statedir", "internal/unpack"},
		deny: []string{kernel + "/...", "os/exec", "net", "net/http", "database/sql"},
		why:  "the light program unpacks the engine and starts it, whatever that contains",
	},
	{
		pkgs: "internal/cli/...",
		only: []string{module, "admin", "internal/client", "internal/tree", "internal/sparse", "internal/offline", "internal/span", "internal/stream", "internal/envd", "internal/plainproto", "internal/template", "sandbox", "driver", "driver/drivertest", "internal/scratch", "internal/cli/...", "internal/mcpserver", "catalog", "internal/engine", "internal/control/...", "internal/policy/...", "internal/image/...", "internal/ops"},
		deny: []string{kernel + "/...", "internal/daemon/..."},
		why:  "commands use the engine and open a node with any providers",
	},
	{
		pkgs: "cmd/atoll",
		only: []string{
			module, "admin", "internal/client", "sandbox", "driver", "driver/drivertest", "internal/scratch", "provider/...", "internal/span", "internal/telemetry", "internal/cli/...", "internal/mcpserver", "internal/engine", "internal/control/...", "internal/keyed", "internal/serial", "internal/gateway/...", "internal/confine", "internal/ownaddr", "internal/policy/...", "internal/secret/...", "internal/idtoken", "internal/image/...", "internal/template",
			"internal/guestkit", "internal/guest/...", "internal/tree", "internal/offline", "internal/sparse", "internal/daemon/...", "internal/providerset", "catalog", "internal/lease", "internal/session", "internal/server/...", "internal/view/...", "internal/desk", "internal/interpreter", "internal/code", "stream", "internal/stream", "internal/cbor", "internal/envd", "internal/modalapi", "internal/plainproto", "internal/store", "internal/eventlog",
			"internal/audit", "internal/blob", "internal/bucket/...", "internal/workspace/...", "internal/key", "internal/quota", "internal/metrics", "internal/snapshotstore/...", "internal/ops", "internal/machine/...", "internal/unpack", "internal/statedir", "internal/fleet/...",
		},
		deny: []string{"github.com/nats-io/nats-server/v2/..."},
		why:  "main only dispatches; the NATS server looks at its process every second, for which the kernel of a sandbox, the same program, is killed",
	},
	{
		pkgs: "cmd/atoll-nats",
		only: []string{"sandbox", "driver", "internal/..."},
		deny: []string{kernel + "/...", "internal/daemon/...", "internal/cli/..."},
		why:  "the NATS server of self-hosted machines, and nothing else",
	},

	{pkgs: "internal/testing/archtest", std: true, why: "the package with the rules must not break them"},
	{pkgs: "test/mcp", std: true, why: "tests of the program from outside must not import it"},
	{pkgs: "test/bridge", std: true, why: "tests of the program from outside must not import it"},
	{pkgs: "test/e2b", std: true, why: "tests of the program from outside must not import it"},
}...)
