package e2bapi

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// An image without the user "user" gets one, with a number that nobody has.
func TestUserScript(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, sub := range []string{"etc/sudoers.d", "home"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write("etc/passwd", "root:x:0:0::/root:/bin/sh\nnode:x:1000:1000::/home/node:/bin/sh\n")
	write("etc/group", "root:x:0:\nother:x:1001:\n")
	script := strings.NewReplacer("/etc/", dir+"/etc/", " /home/user", " "+dir+"/home/user").Replace(userScript)
	for range 2 { // the second time it is there
		if out, err := exec.Command("/bin/sh", "-c", script).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	passwd, err := os.ReadFile(filepath.Join(dir, "etc/passwd"))
	if err != nil {
		t.Fatal(err)
	}
	if text := string(passwd); strings.Count(text, "user:x:") != 1 || !strings.Contains(text, "\nuser:x:1002:1002::/home/user:/bin/") {
		t.Errorf("users: %s", text)
	}
	if info, err := os.Stat(filepath.Join(dir, "home/user")); err != nil || !info.IsDir() {
		t.Errorf("home: %v", err)
	}
}

func TestDefaultAccount(t *testing.T) {
	n := &names{logins: map[string]login{"root": {"/root", "/bin/sh"}, "app": {"/app", "/bin/sh"}}, users: map[uint32]string{0: "root", 7: "app"}}
	for def, want := range map[defaults]account{
		{}:                         {name: "root", dir: "/root"},
		{dir: "/srv"}:              {name: "root", dir: "/srv"},
		{user: "app"}:              {name: "app", dir: "/app"},
		{user: "7:7", dir: "/srv"}: {name: "app", dir: "/srv"},
	} {
		if a, err := n.account("", def); err != nil || a.name != want.name || a.dir != want.dir {
			t.Errorf("%+v: %s in %s, %v", def, a.name, a.dir, err)
		}
	}
	if a, err := n.account("root", defaults{user: "app", dir: "/srv"}); err != nil || a.dir != "/root" {
		t.Errorf("somebody else: %s, %v", a.dir, err)
	}
	for user, def := range map[string]defaults{"nobody": {}, "": {user: "gone"}} {
		if _, err := n.account(user, def); err == nil {
			t.Errorf("an unknown user was accepted: %q, %+v", user, def)
		}
	}
}

// Share counts requests for their key, and those without one for their sandbox.
func TestShare(t *testing.T) {
	for _, tt := range []struct {
		host   string
		header map[string]string
		want   string
	}{
		{"api.localhost", map[string]string{"X-API-Key": "k"}, "k"},
		{"api.localhost", map[string]string{"Authorization": "Bearer k"}, "k"},
		{"49983-sbone.localhost", map[string]string{"X-Access-Token": "t"}, "sb-one 49983"},
		{"localhost", map[string]string{"E2b-Sandbox-Id": "sbone", "E2b-Sandbox-Port": "8000"}, "sb-one 8000"},
		{"localhost", nil, ""},
	} {
		r := httptest.NewRequest(http.MethodGet, "http://"+tt.host+"/", nil)
		for name, value := range tt.header {
			r.Header.Set(name, value)
		}
		if got := Share(r); got != tt.want {
			t.Errorf("%s %v counts for %q, want %q", tt.host, tt.header, got, tt.want)
		}
	}
}
