package catalog

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func known(t *testing.T, name string) Descriptor {
	t.Helper()
	for _, d := range Known() {
		if d.Name == name {
			return d
		}
	}
	t.Fatalf("%s is not known", name)
	return Descriptor{}
}

func negotiate(t *testing.T, provider string, q Query) CapabilityDocument {
	t.Helper()
	q.Now = now
	doc, err := Negotiate(known(t, provider), q)
	if err != nil {
		t.Fatal(err)
	}
	return doc
}

func warm() Query { return Query{Liveness: "warm"} }

// RB-7.
func TestKnownProviders(t *testing.T) {
	want := "blaxel boxlite cloudflare daytona docker e2b fake gvisor host islo kubernetes microsandbox microvm modal none opensandbox remote runloop selfhosted superserve vercel"
	var got []string
	for _, d := range Known() {
		got = append(got, d.Name)
		if d.Driver.Available || d.Driver.Reason == "" {
			t.Errorf("%s: a driver that nobody has registered is %+v", d.Name, d.Driver)
		}
	}
	if strings.Join(got, " ") != want {
		t.Errorf("known:\n%s\nwant:\n%s", strings.Join(got, " "), want)
	}
}

// RB-11.
func TestCredentials(t *testing.T) {
	tests := []struct {
		provider string
		env      map[string]string
		missing  string // variable named in the hint; empty: complete
	}{
		{"docker", nil, ""},
		{"none", nil, ""},
		{"host", nil, ""},
		{"e2b", nil, "E2B_API_KEY, or E2B_API_KEY_FILE, or E2B_API_KEY_COMMAND"},
		{"e2b", map[string]string{"E2B_API_KEY": " "}, "E2B_API_KEY, or E2B_API_KEY_FILE, or E2B_API_KEY_COMMAND"},
		{"e2b", map[string]string{"E2B_API_KEY": "k"}, ""},
		{"e2b", map[string]string{"E2B_API_KEY_FILE": "f"}, ""},
		{"modal", nil, "MODAL_APP_NAME"},
		{"modal", map[string]string{"MODAL_APP_NAME": "a"}, ""},
		{"modal", map[string]string{"MODAL_APP_NAME": "a", "MODAL_TOKEN_ID": "i"}, "MODAL_TOKEN_SECRET"},
		{"modal", map[string]string{"MODAL_APP_NAME": "a", "MODAL_TOKEN_SECRET": "s"}, "MODAL_TOKEN_ID"},
		{"modal", map[string]string{"MODAL_APP_NAME": "a", "MODAL_TOKEN_ID": "i", "MODAL_TOKEN_SECRET": "s"}, ""},
		{"vercel", map[string]string{"VERCEL_TOKEN": "t"}, "VERCEL_PROJECT_ID"},
		{"cloudflare", nil, "CLOUDFLARE_SANDBOX_WORKER_URL"},
		{"daytona", nil, "DAYTONA_API_KEY, or DAYTONA_API_KEY_FILE, or DAYTONA_API_KEY_COMMAND"},
		{"runloop", nil, "RUNLOOP_API_KEY, or RUNLOOP_API_KEY_FILE, or RUNLOOP_API_KEY_COMMAND"},
		{"blaxel", map[string]string{"BL_WORKSPACE": "w"}, "BL_API_KEY, or BL_API_KEY_FILE, or BL_API_KEY_COMMAND"},
		{"blaxel", map[string]string{"BL_API_KEY": "k"}, "BL_WORKSPACE"},
	}
	for _, tt := range tests {
		err := CheckCredentials(known(t, tt.provider), func(name string) (string, bool) { v, ok := tt.env[name]; return v, ok })
		if tt.missing == "" {
			if err != nil {
				t.Errorf("%s with %v: %v", tt.provider, slices.Collect(maps.Keys(tt.env)), err)
			}
			continue
		}
		known, ok := errors.AsType[*sandbox.Error](err)
		if !ok || known.Hint != "set "+tt.missing || !strings.HasPrefix(known.Message, "[sandbox:"+tt.provider+"] ") {
			t.Errorf("%s with %v: %+v, want %s to be missing", tt.provider, slices.Collect(maps.Keys(tt.env)), err, tt.missing)
		}
	}
}

// RB-12.
func TestMergePorts(t *testing.T) {
	tests := []struct {
		provider string
		desktop  bool
		in, want []int
	}{
		{"modal", true, []int{8080, 22}, []int{8080, 22, 6080, 7681}},
		{"modal", true, []int{7681}, []int{7681, 6080}},
		{"modal", false, []int{8080}, []int{8080}},
		{"blaxel", true, []int{8080}, []int{8080}},
		{"vercel", true, nil, nil},
		{"docker", true, nil, nil},
		{"selfhosted", true, nil, nil},
	}
	for _, tt := range tests {
		if got := MergePorts(known(t, tt.provider), tt.in, tt.desktop); !slices.Equal(got, tt.want) {
			t.Errorf("%s, desktop %v: %v becomes %v, want %v", tt.provider, tt.desktop, tt.in, got, tt.want)
		}
	}
}

// RB-15.
func TestInvariants(t *testing.T) {
	for _, d := range Known() {
		if err := CheckDescriptor(d.Name, d); err != nil {
			t.Errorf("%s: %v", d.Name, err)
		}
	}
	breaks := map[string]func(*Descriptor){
		"is that of":                func(d *Descriptor) { d.Name = "other" },
		"no backend id":             func(d *Descriptor) { d.BackendID = "" },
		"exposes no port":           func(d *Descriptor) { d.Ports.Kind = PortNone },
		"without a transport":       func(d *Descriptor) { d.Desktop.Transport = "" },
		"must record":               func(d *Descriptor) { d.Recording = false },
		"takes no snapshot":         func(d *Descriptor) { d.Snapshot.Kind = SnapshotNone },
		"is not hosted":             func(d *Descriptor) { d.Tier = TierDev },
		"egress \"x\" is not known": func(d *Descriptor) { d.Egress = "x" },
	}
	for want, change := range breaks {
		d := known(t, "modal")
		change(&d)
		err := CheckDescriptor("modal", d)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "modal") {
			t.Errorf("%q: got %v", want, err)
		}
	}
}

// The values of RB-16 that a descriptor states. The row of e2b is what its
// driver supports: see TestCatalog of package provider/all.
func TestKnownValues(t *testing.T) {
	row := func(name string) string {
		d := known(t, name)
		flag := func(b bool) string {
			if b {
				return "y"
			}
			return "n"
		}
		return strings.Join([]string{
			string(d.Tier), flag(d.Terminal.PTY), flag(d.Desktop.Available), d.Lifetime.Hard.String(), flag(d.Lifetime.IdleKiller), string(d.Snapshot.Kind),
			string(d.Ports.Kind), flag(d.Ports.OnDemand), d.WorkspaceRoot, flag(d.Persistable), flag(d.RunAs), flag(d.Lifetime.LockFreeResume),
		}, " ")
	}
	for name, want := range map[string]string{
		"modal":      "desktop y y 24h0m0s y native-fs provider-tunnel n /workspace y y y",
		"daytona":    "desktop y y 0s y native-snapshot-id provider-tunnel y /workspace y y n",
		"runloop":    "desktop y y 48h0m0s y native-snapshot-id provider-tunnel y /workspace y y n",
		"e2b":        "desktop y y 0s y native-snapshot-id provider-tunnel n /home/user y y n",
		"blaxel":     "desktop y y 0s y none provider-tunnel y /workspace n y n",
		"cloudflare": "headless y n 0s y none provider-tunnel y /workspace n y n",
		"vercel":     "headless y n 5h0m0s y native-snapshot-id provider-tunnel y /vercel/sandbox y y n",
		"none":       "none n n 0s n none none n /workspace n n y",
		"selfhosted": "desktop y y 0s n none provider-tunnel y / n n y",
	} {
		if got := row(name); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, want)
		}
	}
}

// RB-18.
func TestNegotiate(t *testing.T) {
	if _, err := Negotiate(Descriptor{}, warm()); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("an unknown provider: %v", err)
	}
	doc := negotiate(t, "modal", Query{SessionID: "s", Liveness: "warm", Epoch: 4})
	if doc.SessionID != "s" || doc.Backend != "modal" || doc.OS != "linux" || doc.LeaseEpoch != 4 || doc.HeartbeatMs != 30000 || !doc.Negotiated.Equal(now) {
		t.Errorf("%+v", doc)
	}
}

// RB-19.
func TestEveryCellIsThere(t *testing.T) {
	for _, d := range Known() {
		data, err := json.Marshal(negotiate(t, d.Name, Query{}))
		if err != nil {
			t.Fatal(err)
		}
		var cells map[string]any
		if err := json.Unmarshal(data, &cells); err != nil {
			t.Fatal(err)
		}
		for _, cell := range []string{"FileSystem", "Terminal", "Git", "DesktopStream", "Recording", "ComputerUse"} {
			if _, ok := cells[cell].(map[string]any); !ok {
				t.Errorf("%s has no cell %s", d.Name, cell)
			}
		}
	}
}

// RB-21.
func TestCatalogDesktop(t *testing.T) {
	minted := &Stream{URL: "wss://x", Token: "t", Expires: now}
	tests := []struct {
		name, provider string
		q              Query
		want           UnavailableReason
	}{
		{"headless", "vercel", warm(), TierIsHeadless},
		{"dev", "docker", warm(), BackendUnsupported},
		{"headless beats policy", "vercel", Query{DesktopOff: true}, TierIsHeadless},
		{"policy", "modal", Query{Liveness: "warm", DesktopOff: true}, DisabledByPolicy},
		{"no secret", "modal", Query{Liveness: "warm", NoStreamSecret: true}, DisabledByPolicy},
		{"policy beats cold", "modal", Query{DesktopOff: true}, DisabledByPolicy},
		{"cold", "modal", Query{}, LeaseCold},
		{"warming", "modal", Query{Liveness: "warming"}, ""},
		{"warm", "modal", warm(), ""},
		{"without a display in the image", "modal", Query{Liveness: "warm", NoDesktop: true}, NotProvisioned},
		{"policy beats the image", "modal", Query{DesktopOff: true, NoDesktop: true}, DisabledByPolicy},
		{"the image beats cold", "modal", Query{NoDesktop: true}, NotProvisioned},
		{"the operating system beats all", "modal", Query{OS: "macos", DesktopOff: true}, OSUnsupported},
		{"RB-22: minted beats cold", "modal", Query{Desktop: minted}, ""},
		{"RB-22: minted does not beat policy", "modal", Query{Desktop: minted, DesktopOff: true}, DisabledByPolicy},
	}
	for _, tt := range tests {
		c := negotiate(t, tt.provider, tt.q).Desktop
		if c.Reason != tt.want || (c.Transport != "") != (tt.want == "") || c.RequiresAcknowledgment != (tt.want == "") || !c.Unredacted {
			t.Errorf("%s: %+v, want reason %q", tt.name, c, tt.want)
		}
	}
}

// RB-21.
func TestCatalogTerminal(t *testing.T) {
	minted := &Stream{URL: "wss://x", Token: "t", Expires: now}
	tests := []struct {
		name, provider string
		q              Query
		transport      Transport
		reason         UnavailableReason
	}{
		{"none", "none", warm(), "", BackendUnsupported},
		{"policy", "modal", Query{Liveness: "warm", TerminalOff: true, Terminal: minted}, TransportSSE, DisabledByPolicy},
		{"cold", "modal", Query{}, TransportSSE, LeaseCold},
		{"minted", "modal", Query{Terminal: minted}, TransportPTY, ""},
		{"warm", "modal", warm(), TransportPTY, ""},
		{"os", "modal", Query{OS: "plan9", Liveness: "warm", Terminal: minted}, "", OSUnsupported},
	}
	for _, tt := range tests {
		c := negotiate(t, tt.provider, tt.q).Terminal
		if c.Transport != tt.transport || c.Reason != tt.reason || (c.URL != "") != (c.Transport == TransportPTY && tt.q.Terminal != nil) {
			t.Errorf("%s: %+v, want %q and reason %q", tt.name, c, tt.transport, tt.reason)
		}
	}
	d := known(t, "modal")
	d.Terminal.PTY = false
	doc, err := Negotiate(d, Query{Now: now, TerminalOff: true})
	if c := doc.Terminal; err != nil || c.Transport != TransportSSE || c.Reason != "" || c.URL != "" {
		t.Errorf("no pty: %+v, %v", c, err)
	}
}

// RB-21.
func TestRecordingAndComputerUse(t *testing.T) {
	tests := []struct {
		name, provider      string
		q                   Query
		recording, computer UnavailableReason
	}{
		{"headless", "vercel", warm(), TierIsHeadless, TierIsHeadless},
		{"cold", "modal", Query{}, "", ""},
		{"desktop off", "modal", Query{Liveness: "warm", DesktopOff: true}, DisabledByPolicy, DisabledByPolicy},
		{"computer off", "modal", Query{Liveness: "warm", ComputerOff: true}, "", DisabledByPolicy},
		{"no display", "modal", Query{Liveness: "warm", NoDesktop: true}, NotProvisioned, NotProvisioned},
		{"no recorder", "modal", Query{Liveness: "warm", NoRecording: true}, NotProvisioned, ""},
		{"os", "modal", Query{OS: "windows"}, OSUnsupported, OSUnsupported},
	}
	for _, tt := range tests {
		doc := negotiate(t, tt.provider, tt.q)
		if r, c := doc.Recording, doc.ComputerUse; r.Reason != tt.recording || r.Available != (r.Reason == "") || (len(r.Modes) == 2) != r.Available || (len(r.Codecs) == 1) != r.Available ||
			c.Reason != tt.computer || c.Available != (c.Reason == "") {
			t.Errorf("%s: %+v, %+v", tt.name, r, c)
		}
	}
}

func TestDesktopImage(t *testing.T) {
	for name, want := range map[string]bool{
		"desktop": true, "desktop:1": true, "registry.example.com:5000/team/desktop:1": true, "x/desktop@sha256:0": true,
		"": false, "host": false, "debian:12": false, "desktop/debian": false, "desktops": false,
	} {
		if DesktopImage(name) != want {
			t.Errorf("%q: %v", name, !want)
		}
	}
}

// RB-23.
func TestAcknowledgment(t *testing.T) {
	q := Query{Liveness: "warm", Desktop: &Stream{URL: "wss://x", Token: "secret", Expires: now}}
	if c := negotiate(t, "modal", q).Desktop; c.URL != "" || c.Token != "" || !c.ExpiresAt.IsZero() || c.Acknowledged {
		t.Errorf("without an acknowledgment: %+v", c)
	}
	q.Acknowledged = true
	if c := negotiate(t, "modal", q).Desktop; c.URL == "" || c.Token == "" || c.ExpiresAt.IsZero() {
		t.Errorf("with one: %+v", c)
	}
	q.DesktopOff = true
	if c := negotiate(t, "modal", q).Desktop; c.URL != "" || c.Token != "" {
		t.Errorf("refused by policy: %+v", c)
	}
}

// RB-24.
func TestSharedSessions(t *testing.T) {
	q := Query{Liveness: "warm", Shared: true, SharedWith: []string{"a", "b"}}
	if c := negotiate(t, "modal", q).Desktop; !slices.Equal(c.SharedSessionIDs, q.SharedWith) {
		t.Errorf("%+v", c)
	}
	if c := negotiate(t, "docker", q).Desktop; c.SharedSessionIDs == nil || len(c.SharedSessionIDs) != 0 {
		t.Errorf("not available: %+v", c)
	}
	q.Shared = false
	if c := negotiate(t, "modal", q).Desktop; len(c.SharedSessionIDs) != 0 {
		t.Errorf("not shared: %+v", c)
	}
}

// RB-25.
func TestMode(t *testing.T) {
	online := &Machine{Liveness: MachineOnline, Display: true, Consented: true}
	if c := negotiate(t, "modal", warm()).Desktop; c.Mode != "interactive" || c.Transport != TransportVNC || c.Client != "novnc" || c.Resolution != Screen {
		t.Errorf("%+v", c)
	}
	q := warm()
	q.DesktopView, q.Desktop = true, &Stream{Resolution: Resolution{Width: 640, Height: 480}}
	if c := negotiate(t, "modal", q).Desktop; c.Mode != "read-only" || c.Resolution.Width != 640 {
		t.Errorf("%+v", c)
	}
	if c := negotiate(t, "selfhosted", Query{Liveness: "warm", Machine: online}).Desktop; c.Mode != "read-only" || c.Transport != TransportRelay || c.Client != "frames" {
		t.Errorf("%+v", c)
	}
}

// RB-26.
func TestHasDesktop(t *testing.T) {
	for name, want := range map[string]bool{"modal": true, "docker": false, "unix_local": false, "host": false, "nope": false, "": false} {
		if got := HasDesktop(Known(), name); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}

// RB-27.
func TestMachineLiveness(t *testing.T) {
	tests := []struct {
		active, answered bool
		ago              time.Duration
		want             Liveness
	}{
		{false, true, 0, MachineOffline},
		{true, true, time.Hour, MachineOnline},
		{true, false, 30 * time.Second, MachineReconnecting},
		{true, false, 30*time.Second + time.Millisecond, MachineOffline},
	}
	for _, tt := range tests {
		if got := MachineLiveness(tt.active, tt.answered, now.Add(-tt.ago), now); got != tt.want {
			t.Errorf("%+v: %s", tt, got)
		}
	}
}

// RB-28.
func TestMachineOverlay(t *testing.T) {
	tests := []struct {
		name                     string
		m                        Machine
		off                      bool
		files, desktop, computer UnavailableReason
	}{
		{"offline", Machine{}, false, AgentOffline, AgentOffline, AgentOffline},
		{"reconnecting", Machine{Liveness: MachineReconnecting}, false, AgentReconnecting, AgentReconnecting, AgentReconnecting},
		{"no display", Machine{Liveness: MachineOnline}, false, "", DisplayUnavailable, DisplayUnavailable},
		{"a policy wins over no display", Machine{Liveness: MachineOnline}, true, "", DisabledByPolicy, DisabledByPolicy},
		{"no consent", Machine{Liveness: MachineOnline, Display: true}, false, "", "", ConsentRequired},
		{"all", Machine{Liveness: MachineOnline, Display: true, Consented: true}, false, "", "", ""},
		{"a person's screen", Machine{Liveness: MachineOnline, Own: true, Display: true}, false, "", ConsentRequired, ConsentRequired},
		{"a person's screen, shared", Machine{Liveness: MachineOnline, Own: true, Display: true, Consented: true}, false, "", "", ""},
		{"a person's screen, offline", Machine{Liveness: MachineOffline, Own: true, Display: true, Consented: true}, false, AgentOffline, AgentOffline, AgentOffline},
	}
	for _, tt := range tests {
		doc := negotiate(t, "selfhosted", Query{Liveness: "warm", Machine: &tt.m, DesktopOff: tt.off})
		if doc.FileSystem.Reason != tt.files || doc.Git.Reason != tt.files || doc.Terminal.Reason != tt.files || doc.Desktop.Reason != tt.desktop || doc.ComputerUse.Reason != tt.computer {
			t.Errorf("%s: %+v", tt.name, doc)
		}
		if tt.m.Own && doc.Recording.Available {
			t.Errorf("%s: it is recorded: %+v", tt.name, doc.Recording)
		}
		if (tt.files != "") != (doc.Terminal.Transport == "") {
			t.Errorf("%s: terminal %+v", tt.name, doc.Terminal)
		}
	}
}

func TestNegotiateSharesNothing(t *testing.T) {
	shared := []string{"a"}
	doc := negotiate(t, "modal", Query{Liveness: "warm", Shared: true, SharedWith: shared})
	doc.Desktop.SharedSessionIDs[0] = "changed"
	if shared[0] != "a" {
		t.Error("the document shares the caller's list")
	}
}
