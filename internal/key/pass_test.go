package key_test

import (
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/key"
	"github.com/atoll-run/atoll/sandbox"
)

func TestPasses(t *testing.T) {
	secret := key.NewPassKey()
	passes := key.NewPasses(secret)
	now := time.Now().UTC()
	p := key.Pass{Tenant: "canary-tenant", Sandbox: "canary-box", Ports: []uint16{8000}, Expires: now.Add(time.Hour), Key: "canarykey"}
	token, err := passes.Seal(p)
	if err != nil {
		t.Fatal(err)
	}
	got, err := passes.Open(token)
	if err != nil || got.Tenant != p.Tenant || got.Sandbox != p.Sandbox || !got.Expires.Equal(p.Expires) || got.Key != p.Key {
		t.Errorf("%+v, %v", got, err)
	}
	if again, err := key.NewPasses(secret).Open(token); err != nil || again.Sandbox != p.Sandbox {
		t.Errorf("with the same secret: %+v, %v", again, err)
	}
	for port, when := range map[uint16]time.Time{8000: now, 8001: now, 0: now} {
		if got.Opens(port, when) != (port == 8000) {
			t.Errorf("port %d: %v", port, got.Opens(port, when))
		}
	}
	if got.Opens(8000, p.Expires) {
		t.Error("it opens when its time is over")
	}
	if b := got.Bearer(); b.Allow("port.open") != nil || b.Allow("sandbox.destroy") == nil || b.Allow("files.write") == nil {
		t.Errorf("the bearer: %+v", b)
	}
	// The token says nothing, not even how long the names in it are.
	other, _ := passes.Seal(key.Pass{Tenant: "t", Sandbox: "b", Expires: now})
	if strings.Contains(token, "canary") || len(other) != len(token) {
		t.Errorf("%s (%d), %s (%d)", token, len(token), other, len(other))
	}
	if twice, _ := passes.Seal(p); twice == token {
		t.Error("the same pass has the same token")
	}
}

func TestForgedPasses(t *testing.T) {
	passes := key.NewPasses(key.NewPassKey())
	token, err := passes.Seal(key.Pass{Tenant: "t", Sandbox: "b", Expires: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	forged := []string{"", "atollport_", "atoll_" + token, token[:len(token)-1], token + "A", strings.ToLower(token), "atollport_" + strings.Repeat("A", 200), "atollport_" + strings.Repeat("A", 1<<20)}
	for i := len("atollport_"); i < len(token); i += 7 {
		b := []byte(token)
		if b[i]++; b[i] > 'z' {
			b[i] = 'A'
		}
		forged = append(forged, string(b))
	}
	for _, f := range forged {
		p, err := passes.Open(f)
		if sandbox.CodeOf(err) != sandbox.CodeUnauthorized || p.Sandbox != "" {
			t.Errorf("%.40q opens as %+v, %v", f, p, err)
		}
	}
	if _, err := key.NewPasses(key.NewPassKey()).Open(token); err == nil {
		t.Error("it opens with another secret")
	}
}
