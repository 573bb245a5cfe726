package drivertest

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// imageCases test what a spec adds to a sandbox from outside.
var imageCases = []testCase{
	{"images/directory", capImages, func(t *caseT) {
		root := t.TempDir()
		t.hostFile(filepath.Join(root, "etc", "image-marker"), "from the image")
		t.hostFile(filepath.Join(root, "tmp", "keep"), "")
		t.seesImage("dir:" + root)
	}},
	{"images/tar", capImages, func(t *caseT) {
		name := filepath.Join(t.TempDir(), "rootfs.tar")
		stream := t.tarball(file("etc/image-marker", "from the image"), file("tmp/keep", ""))
		t.hostFile(name, string(stream))
		t.seesImage("tar:" + name)
	}},
	{"images/unusable", capImages, func(t *caseT) {
		bad := filepath.Join(t.TempDir(), "bad.tar")
		t.hostFile(bad, string(pattern(4096)))
		for _, image := range []string{"dir:" + bad + "-missing", "tar:" + bad + "-missing", "tar:" + bad, "oci:" + filepath.Dir(bad), "no such:::image"} {
			spec := t.spec(func(s *sandbox.Spec) { s.Image = image })
			inst, err := t.provider.Create(t.ctx, spec)
			if err == nil {
				_ = inst.Destroy(t.ctx)
			}
			t.wantCode("Create from "+image[:4]+"…", err, sandbox.CodeInvalid, sandbox.CodeNotFound)
			t.notListed(t.provider, spec.ID)
		}
	}},
	{"images/private", capImages, func(t *caseT) {
		a, b := t.fresh(), t.fresh()
		a.mustSh("echo changed >/etc/drivertest-private")
		if r := b.argv("cat", "/etc/drivertest-private"); r.exit.Code == 0 {
			t.Errorf("a sandbox sees another one's changes to the image: %v", r)
		}
	}},
	{"mounts/read-write", capMounts, func(t *caseT) {
		dir := t.TempDir()
		t.hostFile(filepath.Join(dir, "f"), "from the host\n")
		b := t.fresh(func(s *sandbox.Spec) { s.Mounts = []sandbox.Mount{{Source: dir, Target: "/mnt/drivertest"}} })
		t.want(b.argv("cat", "/mnt/drivertest/f"), "from the host\n")
		b.mustSh("echo from inside >/mnt/drivertest/g")
		if got, err := os.ReadFile(filepath.Join(dir, "g")); err != nil || string(got) != "from inside\n" {
			t.Errorf("the host sees %q, %v", got, err)
		}
	}},
	{"mounts/read-only", capMounts, func(t *caseT) {
		dir := t.TempDir()
		t.hostFile(filepath.Join(dir, "f"), "from the host\n")
		b := t.fresh(func(s *sandbox.Spec) {
			s.Mounts = []sandbox.Mount{{Source: dir, Target: "/mnt/drivertest", ReadOnly: true}}
		})
		t.want(b.argv("cat", "/mnt/drivertest/f"), "from the host\n")
		for _, script := range []string{"echo x >/mnt/drivertest/f", "echo x >/mnt/drivertest/g", "rm /mnt/drivertest/f", "chmod 777 /mnt/drivertest/f"} {
			if r := b.argv("sh", "-c", script); r.exit.Code == 0 {
				t.Errorf("%s succeeds on a read-only mount", script)
			}
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
			t.Errorf("the host's directory has changed: %v, %v", entries, err)
		}
	}},
	{"mounts/read-only-below", capMounts, func(t *caseT) {
		// A mount cannot be renamed, removed or bypassed.
		dir := t.TempDir()
		t.hostFile(filepath.Join(dir, "above", "lib", "code"), "good")
		b := t.fresh(func(s *sandbox.Spec) {
			s.Mounts = []sandbox.Mount{
				{Source: dir, Target: "/mnt/drivertest"},
				{Source: filepath.Join(dir, "above"), Target: "/mnt/drivertest/above"},
				{Source: filepath.Join(dir, "above", "lib"), Target: "/mnt/drivertest/above/lib", ReadOnly: true},
			}
		})
		for _, script := range []string{
			"echo bad >above/lib/code", "mv above/lib gone", "mv above gone", "rm -rf above", "ln above/lib/code hard && echo bad >hard",
			"ln -s above/lib way; echo bad >way/code", "cd above/lib && echo bad >../lib/code", "echo bad >mine; mv -f mine above/lib/code",
		} {
			_ = b.argv("sh", "-c", "cd /mnt/drivertest; "+script) // some of it may succeed; only the host's file counts
			if got, err := os.ReadFile(filepath.Join(dir, "above", "lib", "code")); err != nil || string(got) != "good" {
				t.Fatalf("%s: the host sees %q, %v", script, got, err)
			}
		}
		b.mustSh("echo fine >/mnt/drivertest/above/mine; cat /mnt/drivertest/above/lib/code >/dev/null")
	}},
	{"mounts/no-way-out", capMounts, func(t *caseT) {
		dir := t.TempDir()
		t.hostFile(filepath.Join(dir, "secret"), t.canary)
		share := filepath.Join(dir, "share")
		t.hostFile(filepath.Join(share, "f"), "x")
		b := t.fresh(func(s *sandbox.Spec) { s.Mounts = []sandbox.Mount{{Source: share, Target: "/mnt/drivertest"}} })
		b.mustSh(`ln -s ../secret /mnt/drivertest/up; ln -s "$1" /mnt/drivertest/abs`, filepath.Join(dir, "secret"))
		for _, p := range []string{"/mnt/drivertest/up", "/mnt/drivertest/abs", "/mnt/drivertest/../secret"} {
			if r := b.argv("cat", p); strings.Contains(r.stdout, t.canary) {
				t.Errorf("%s points outside the mount", p)
			}
		}
	}},
	{"mounts/missing-source", capMounts, func(t *caseT) {
		spec := t.spec(func(s *sandbox.Spec) {
			s.Mounts = []sandbox.Mount{{Source: filepath.Join(t.TempDir(), "missing"), Target: "/mnt/drivertest"}}
		})
		inst, err := t.provider.Create(t.ctx, spec)
		if err == nil {
			_ = inst.Destroy(t.ctx)
		}
		t.wantCode("Create", err, sandbox.CodeInvalid, sandbox.CodeNotFound)
		t.notListed(t.provider, spec.ID)
	}},
}

// hostFile creates a file on the host, with its directory.
func (t *caseT) hostFile(name, content string) {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatalf("preparing: %v", err)
	}
	if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
		t.Fatalf("preparing: %v", err)
	}
}

// seesImage creates a sandbox from an image without programs and looks for its
// marker. Running the marker must fail as for any file that is not a program.
func (t *caseT) seesImage(image string) {
	b := t.fresh(func(s *sandbox.Spec) { s.Image = image })
	if r := b.argv("/etc/image-marker"); r.exit.Code != 126 {
		t.Errorf("running the marker: %v; want code 126, because it exists and is no program", r)
	}
	if r := b.argv("/bin/no-such-program"); r.exit.Code != 127 {
		t.Errorf("%v; want code 127", r)
	}
	fs, ok := driver.As[driver.FileSystem](b.inst)
	if !ok {
		return
	}
	r, _, err := fs.Read(t.ctx, "/etc/image-marker", driver.ReadOptions{})
	t.ok("Read", err)
	defer r.Close()
	buf := make([]byte, 64)
	if n, _ := r.Read(buf); string(buf[:n]) != "from the image" {
		t.Errorf("the marker is %q", buf[:n])
	}
}
