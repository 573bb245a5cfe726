package agent

import (
	"os"
	"path/filepath"
	"testing"
)

// TestIdentity writes the name of a sandbox over what an image, a program
// inside, or a former name has left.
func TestIdentity(t *testing.T) {
	const (
		local = localhost
		own   = "127.0.1.1\tbox\t" + ownName + "\n"
		twin  = "127.0.1.1\ttwin\t" + ownName + "\n"
	)
	for name, test := range map[string]struct {
		image          [2]string // hosts, hostname; "-" for none
		hosts, named   string    // after the sandbox was named box
		edit           [2]string // by a program inside; empty: unchanged
		hosts2, named2 string    // after it was named twin
	}{
		"no files":         {[2]string{"-", "-"}, local + own, "box\n", [2]string{}, local + twin, "twin\n"},
		"empty files":      {[2]string{"", ""}, local + own, "box\n", [2]string{}, local + twin, "twin\n"},
		"the image's":      {[2]string{"127.0.0.1 localhost\n10.1.1.1 db", "builder\n"}, "127.0.0.1 localhost\n10.1.1.1 db\n" + own, "box\n", [2]string{}, "127.0.0.1 localhost\n10.1.1.1 db\n" + twin, "twin\n"},
		"an added line":    {[2]string{"-", "-"}, local + own, "box\n", [2]string{local + own + "10.1.1.1 db\n", ""}, local + "10.1.1.1 db\n" + twin, "twin\n"},
		"replaced inside":  {[2]string{"-", "-"}, local + own, "box\n", [2]string{"10.1.1.1 db\n", "mine\n"}, "10.1.1.1 db\n", "mine\n"},
		"another hostname": {[2]string{"-", "-"}, local + own, "box\n", [2]string{"", "mine\n"}, local + twin, "mine\n"},
		"named by hand":    {[2]string{"127.0.0.1 localhost box\n", "box\n"}, "127.0.0.1 localhost box\n", "box\n", [2]string{}, "127.0.0.1 localhost box\n", "box\n"},
	} {
		t.Run(name, func(t *testing.T) {
			i := identity{root: t.TempDir()}
			files := [2]string{i.root + fileHosts, i.root + fileHostname}
			put := func(n int, text string) {
				t.Helper()
				if err := os.MkdirAll(filepath.Dir(files[n]), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(files[n], []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want := func(step, hosts, hostname string) {
				t.Helper()
				for n, want := range [2]string{hosts, hostname} {
					if got, err := os.ReadFile(files[n]); err != nil || string(got) != want {
						t.Errorf("%s: %s: %q, %v; want %q", step, filepath.Base(files[n]), got, err, want)
					}
				}
			}
			for n, text := range test.image {
				if text != "-" {
					put(n, text)
				}
			}
			i.write("box")
			want("box", test.hosts, test.named)
			if text, err := os.ReadFile(i.root + fileResolv); err != nil || len(text) > 0 {
				t.Errorf("resolv.conf: %q, %v; want an empty file", text, err)
			}
			for n, text := range test.edit {
				if text != "" {
					put(n, text)
				}
			}
			i.write("twin")
			want("twin", test.hosts2, test.named2)
		})
	}
}

// TestMounted keeps mounted files as they are.
func TestMounted(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(dir+"/real", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("real", dir+"/etc"); err != nil {
		t.Fatal(err)
	}
	for point, want := range map[string]bool{dir + "/real/hosts": true, dir + "/real": true, dir + "/real/host": false, dir + "/etc2": false} {
		if got := mounted(dir+"/etc/hosts", []string{point}); got != want {
			t.Errorf("a mount at %s: %v, want %v", point, got, want)
		}
	}
}
