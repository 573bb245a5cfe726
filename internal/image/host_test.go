package image

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/sandbox"
)

const canary = "CANARY-9d41"

// fakeHost makes a root directory with a toolchain, and secrets wherever
// people have them.
func fakeHost(t *testing.T) string {
	root := t.TempDir()
	write := func(name, data string, mode os.FileMode) {
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(data), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(p, mode); err != nil {
			t.Fatal(err)
		}
	}
	link := func(target, name string) {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	write("usr/bin/tool", "tool", 0o755)
	write("usr/local/go/bin/go", "go", 0o755)
	write("usr/lib/os-release", "ID=test\n", 0o644)
	write("sbin/init", "init", 0o755) // a real directory, as on old systems
	link("usr/bin", "bin")
	link("usr/lib", "lib")
	link("../usr/lib/os-release", "etc/os-release")
	write("etc/ld.so.cache", "cache", 0o644)
	write("etc/python3.11/sitecustomize.py", "py", 0o644)
	write("etc/java-17-openjdk/security/java.security", "j", 0o644)
	link("/usr/bin/tool", "etc/alternatives/tool")
	write("var/lib/ca-certificates/bundle.pem", "trust", 0o644)
	link("../../../var/lib/ca-certificates/bundle.pem", "etc/ssl/certs/ca-certificates.crt")
	write("etc/mime.types", "m", 0o644)
	for _, secret := range []string{
		"etc/shadow", "etc/gshadow", "etc/sudoers", "etc/ssh/ssh_host_key", "etc/ssl/private/k.pem", "etc/machine-id", "etc/pip.conf", "etc/npmrc",
		"etc/gitconfig", "etc/environment", "etc/profile.d/tokens.sh", "etc/passwd", "etc/hosts", "etc/resolv.conf", "etc/profile", "etc/bash.bashrc",
		"etc/maven/settings.xml", "etc/fstab", "etc/krb5.keytab", "etc/docker/daemon.json", "home/me/.ssh/id", "root/.netrc", "var/secret", "srv/secret", "run/secret", "tmp/secret",
		"etc/ssl/certs/private/x.pem", "etc/ssl/certs/server.key", "etc/java-17-openjdk/management/jmxremote.password", "etc/python3.11/api_token",
	} {
		write(secret, canary, 0o644)
	}
	write("etc/services", canary, 0o640)
	write("etc/perl/closed/x", canary, 0o644)
	if err := os.Chmod(filepath.Join(root, "etc/perl/closed"), 0o700); err != nil {
		t.Fatal(err)
	}
	link("/etc/shadow", "etc/localtime")                    // leads to a secret: only the link is copied
	link("../../../../home/me/.ssh/id", "etc/ssl/cert.pem") // would be copied as a file
	if err := os.Chmod(filepath.Join(root, "home/me/.ssh/id"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(root, "etc/protocols"), 0o644); err != nil {
		t.Fatal(err)
	}
	return root
}

func TestHostImage(t *testing.T) {
	root := fakeHost(t)
	s := open(t, Options{HostRoot: root})
	img := mustGet(t, s, "", GetOptions{})
	got := files(t, img)
	for name, want := range map[string]string{
		"bin": "->usr/bin", "lib": "->usr/lib", "sbin/": "", "usr/": "", "opt/": "", "proc/": "", "dev/": "", "sys/": "", "tmp/": "", "workspace/": "",
		"home/user/": "", "root/": "", "var/run": "->/run", "etc/os-release": "->../usr/lib/os-release", "etc/ld.so.cache": "cache",
		"etc/python3.11/sitecustomize.py": "py", "etc/java-17-openjdk/security/java.security": "j", "etc/alternatives/tool": "->/usr/bin/tool",
		"etc/ssl/certs/ca-certificates.crt": "trust", "etc/mime.types": "m", "etc/resolv.conf": "", "etc/localtime": "->/etc/shadow",
	} {
		if data, ok := got[name]; !ok || data != want {
			t.Errorf("%s is %q, want %q", name, data, want)
		}
	}
	for name, data := range got {
		if strings.Contains(data, canary) {
			t.Errorf("%s holds a secret", name)
		}
	}
	for _, name := range []string{"etc/machine-id", "etc/shadow", "etc/services", "etc/protocols", "etc/perl/closed/", "usr/bin/", "sbin/init", "home/me/", "etc/ssl/private/"} {
		if _, ok := got[name]; ok {
			t.Errorf("%s is in the image", name)
		}
	}
	if !strings.Contains(got["etc/passwd"], "user:x:1000:") || !strings.Contains(got["etc/passwd"], "nobody:") {
		t.Errorf("passwd: %q", got["etc/passwd"])
	}
	want := []Bind{{root + "/usr", "/usr"}, {root + "/sbin", "/sbin"}}
	if len(img.Binds) != 2 || img.Binds[0] != want[0] || img.Binds[1] != want[1] {
		t.Errorf("binds are %v, want %v", img.Binds, want)
	}
	if path := img.Config.Env[0]; !strings.HasSuffix(path, ":/usr/local/go/bin") {
		t.Errorf("%q lacks Go", path)
	}
	// Of LANG every program that starts would open a dozen files.
	if env := img.Config.Env[1:]; !slices.Equal(env, []string{"LC_CTYPE=C.UTF-8"}) {
		t.Errorf("the environment is %q", env)
	}
}

func TestHostImageFollowsTheHost(t *testing.T) {
	root := fakeHost(t)
	s := open(t, Options{HostRoot: root})
	first := mustGet(t, s, "host", GetOptions{})
	if again := mustGet(t, s, "host", GetOptions{Policy: PolicyNever}); again.Digest != first.Digest || !again.Pulled.Equal(first.Pulled) {
		t.Error("an unchanged host image was made again")
	}
	if err := os.WriteFile(filepath.Join(root, "etc/ld.so.cache"), []byte("new cache"), 0o644); err != nil {
		t.Fatal(err)
	}
	second := mustGet(t, s, "host", GetOptions{})
	if second.Digest == first.Digest || files(t, second)["etc/ld.so.cache"] != "new cache" {
		t.Error("a change of the host does not show")
	}
	if err := os.Remove(filepath.Join(root, "etc/alternatives/tool")); err != nil {
		t.Fatal(err)
	}
	third := mustGet(t, s, "host", GetOptions{})
	if _, ok := files(t, third)["etc/alternatives/tool"]; ok {
		t.Error("a link that is gone still shows")
	}
	all, err := s.List(context.Background())
	if err != nil || len(all) != 1 {
		t.Errorf("%d images stay, %v; the old ones should go", len(all), err)
	}
	if _, err := first.OpenLayers(); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("the old image: %v", err)
	}
}

// TestThisHost makes the image of the machine that runs the test.
func TestThisHost(t *testing.T) {
	img := mustGet(t, open(t, Options{}), "host", GetOptions{})
	got := files(t, img)
	if len(img.Binds) == 0 || img.Binds[0] != (Bind{"/usr", "/usr"}) {
		t.Errorf("binds: %v", img.Binds)
	}
	for _, name := range []string{"etc/passwd", "etc/hosts", "etc/nsswitch.conf"} {
		if got[name] == "" {
			t.Errorf("%s is empty or missing", name)
		}
	}
	for name := range got {
		if strings.HasPrefix(name, "etc/ssh") || strings.HasPrefix(name, "etc/shadow") || strings.HasPrefix(name, "etc/sudo") || name == "etc/machine-id" {
			t.Errorf("%s is in the image", name)
		}
	}
}
