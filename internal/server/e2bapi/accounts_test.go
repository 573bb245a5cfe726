package e2bapi

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/internal/need"
)

// An image without the user "user" gets one, with an unused number.
func TestUserScript(t *testing.T) {
	need.Root(t, "it gives files away")
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
	script := strings.NewReplacer("/etc/", dir+"/etc/", `"/home/$1`, `"`+dir+`/home/$1`).Replace(userScript)
	for _, name := range []string{"user", "user", "app"} { // the second time it exists
		if out, err := exec.Command("/bin/sh", "-c", script, "sh", name).CombinedOutput(); err != nil {
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
	if text := string(passwd); !strings.Contains(text, "\napp:x:1003:1003::/home/app:/bin/") {
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

// A USER step of a build makes a user that the image lacks. A user that an
// earlier step has made stays as it is, so each is made just before its step.
func TestUserSteps(t *testing.T) {
	h := &buildAPI{}
	b := &order{From: "alpine", User: defaultUser, MakeUser: true, Steps: []buildStep{
		{Type: "RUN", Args: []string{"adduser -D app"}},
		{Type: "USER", Args: []string{"app"}},
		{Type: "USER", Args: []string{"root"}},
		{Type: "USER", Args: []string{"1000:1000"}},
		{Type: "USER", Args: []string{"a.b"}},
	}}
	d, numbers, err := h.describe(t.Context(), nil, b)
	if err != nil {
		t.Fatal(err)
	}
	var steps []string
	for i, s := range d.Steps {
		steps = append(steps, fmt.Sprint(numbers[i], " ", s.Op, " ", s.Args[len(s.Args)-1]))
	}
	want := "0 run user, 0 user user, 0 workdir /home/user, 1 run adduser -D app, 2 run app, 2 user app, 3 user root, 4 user 1000:1000, 5 user a.b"
	if got := strings.Join(steps, ", "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	for step, want := range map[int]int{0: 0, 1: 0, 3: 0, 4: 1, 5: 2, 6: 2, 9: 5, 10: 5} {
		if got := numberOf(numbers, step); got != want {
			t.Errorf("step %d of the builder is %d, want %d", step, got, want)
		}
	}
}
