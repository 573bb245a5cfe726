package gvisor_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

// attacksOnMounts try to change /workspace/lib and /workspace/deep/lib, which
// are read-only. Only the effect on the host's files counts.
var attacksOnMounts = map[string]string{
	"write":         `echo evil >/workspace/$T/code; echo evil >>/workspace/$T/code; dd if=/dev/zero of=/workspace/$T/code bs=1 count=1 conv=notrunc; truncate -s 0 /workspace/$T/code; cp /bin/true /workspace/$T/new`,
	"attributes":    `chmod 777 /workspace/$T/code /workspace/$T; chown 1:1 /workspace/$T/code; touch -d 2001-01-01 /workspace/$T/code; setfattr -n user.x -v evil /workspace/$T/code`,
	"rename":        `mv /workspace/$T /workspace/gone; mv /workspace/$T/code /workspace/$T/other; echo evil >/workspace/mine; mv -f /workspace/mine /workspace/$T/code; mv /workspace/$T/code /workspace/stolen`,
	"rename above":  `mv /workspace/deep /workspace/moved; mkdir -p /workspace/deep/lib; echo evil >/workspace/deep/lib/code`,
	"exchange":      `mkdir -p /workspace/swap/lib; echo evil >/workspace/swap/lib/code; python3 -c "import ctypes; l=ctypes.CDLL(None,use_errno=True); [l.renameat2(-100,a,-100,b,2) for a,b in ((b'/workspace/swap/lib',b'/workspace/$T'),(b'/workspace/swap',b'/workspace/deep'),(b'/workspace/swap/lib/code',b'/workspace/$T/code'))]"`,
	"remove":        `rm -rf /workspace/$T; rmdir /workspace/$T; rm -rf /workspace/deep; unlink /workspace/$T/code`,
	"hard link":     `ln /workspace/$T/code /workspace/hard && echo evil >/workspace/hard; ln /workspace/$T/code /tmp/hard && echo evil >/tmp/hard; echo evil >/workspace/mine; ln -f /workspace/mine /workspace/$T/code`,
	"symbolic link": `ln -s /workspace/$T /workspace/way; echo evil >/workspace/way/code; ln -sfn /tmp /workspace/$T; rm -rf /workspace/deep; ln -sfn /tmp /workspace/deep; ln -s ../workspace/$T/code /tmp/code; echo evil >/tmp/code`,
	"mount":         `umount -l /workspace/$T; umount /workspace/$T; mount -o remount,rw /workspace/$T; mount --bind /workspace /mnt && echo evil >/mnt/$T/code; mount --move /workspace/$T /mnt; mount -t tmpfs none /workspace/$T && echo evil >/workspace/$T/code; echo evil >/workspace/$T/code`,
	"namespace": `unshare -Urm sh -c 'umount -l /workspace/$T; umount /workspace/$T; echo evil >/workspace/$T/code; mount -o remount,rw,bind /workspace/$T; echo evil >/workspace/$T/code;
		mount --bind /workspace /mnt; echo evil >/mnt/$T/code; mount --rbind / /mnt; umount -l /mnt/workspace/$T; echo evil >/mnt/workspace/$T/code; mount --move /workspace/$T /media; echo evil >/workspace/$T/code; pivot_root / /mnt; echo evil >/workspace/$T/code'`,
	"chroot": `chroot /workspace /bin/sh -c 'echo evil >/$T/code'; python3 -c "import os; os.chroot('/workspace'); os.chdir('..'); open('/$T/code','w').write('evil')"`,
	"descriptor": `python3 -c "
import os
for how in (os.O_RDWR, os.O_WRONLY|os.O_TRUNC, os.O_RDONLY|os.O_TRUNC, os.O_WRONLY|os.O_CREAT):
    try:
        fd=os.open('/workspace/$T/code', how); os.write(fd,b'evil')
    except OSError: pass
fd=os.open('/workspace/$T/code', os.O_RDONLY)
for what in (lambda: os.ftruncate(fd,0), lambda: os.fchmod(fd,0o777), lambda: os.write(os.open('/proc/self/fd/%d'%fd, os.O_RDWR), b'evil'), lambda: os.link('/proc/self/fd/%d'%fd,'/workspace/procfd')):
    try: what()
    except OSError: pass
d=os.open('/workspace', os.O_RDONLY)
for what in (lambda: os.open('$T/code', os.O_RDWR, dir_fd=d), lambda: os.rename('$T','x',src_dir_fd=d,dst_dir_fd=d), lambda: os.mkdir('$T/new',dir_fd=d)):
    try: what()
    except OSError: pass
import mmap
try: m=mmap.mmap(fd,4,mmap.MAP_SHARED,mmap.PROT_READ|mmap.PROT_WRITE); m[0:4]=b'evil'; m.flush()
except (OSError, PermissionError, ValueError): pass
"`,
	"other user":  `chmod 777 /workspace; su -s /bin/sh nobody -c 'echo evil >/workspace/$T/code; mv /workspace/$T /workspace/x'`,
	"open before": `exec 3<>/workspace/$T/code; echo evil >&3; exec 4</workspace; cd /proc/self/fd/4 && echo evil >$T/code; cd /workspace/$T && echo evil >code; cd /workspace/$T/.. && mv lib x`,
	"device node": `mknod /workspace/node b 8 0; mknod /workspace/$T/node c 1 3; mkfifo /workspace/$T/pipe`,
}

// hostTree describes everything below a directory of the host.
func hostTree(t *testing.T, dir string) string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p) // both are absolute
		content := ""
		if info.Mode().IsRegular() {
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			content = fmt.Sprintf("%q %v", data, info.ModTime().UnixNano())
		}
		all = append(all, fmt.Sprint(rel, " ", info.Mode(), " ", content))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	sort.Strings(all)
	return strings.Join(all, "\n")
}

// The read-only parts of a shared directory cannot be written, whatever root
// inside does to the directories around them.
func TestAttackReadOnlyBelowWritable(t *testing.T) {
	p := newProvider(t, nil)
	for name, script := range attacksOnMounts {
		for _, target := range []string{"lib", "deep/lib"} {
			t.Run(name+" "+target, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				for _, sub := range []string{"lib", "deep/lib"} {
					if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(filepath.Join(dir, sub, "code"), []byte("good"), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				before := map[string]string{"lib": hostTree(t, dir+"/lib"), "deep/lib": hostTree(t, dir+"/deep/lib")}
				sb := create(t, p, sandbox.Spec{
					ID: sandbox.ID("ro-" + strings.NewReplacer(" ", "-", "/", "-").Replace(name+"-"+target)), Image: "host",
					Mounts: []sandbox.Mount{
						{Source: dir, Target: "/workspace"},
						{Source: dir + "/lib", Target: "/workspace/lib", ReadOnly: true},
						// The parent directories of a mount are mounts, too; see mountsOf.
						{Source: dir + "/deep", Target: "/workspace/deep"},
						{Source: dir + "/deep/lib", Target: "/workspace/deep/lib", ReadOnly: true},
					},
				})
				sh(t, sb, "T="+target+"\nexport T\n"+strings.ReplaceAll(script, "$T", target))
				for sub, want := range before {
					if _, err := os.Stat(filepath.Join(dir, sub)); err != nil {
						t.Errorf("%s is gone: %v", sub, err)
					} else if got := hostTree(t, filepath.Join(dir, sub)); got != want {
						t.Errorf("%s was changed to\n%s\nfrom\n%s", sub, got, want)
					}
				}
				stillWorks(t, sb)
				if out := sh(t, sb, "echo fine >/workspace/own && cat /workspace/own"); out.stdout != "fine\n" {
					t.Errorf("the writable part cannot be written: %+v", out)
				}
			})
		}
	}
}

// Below a read-only directory, only the writable directories can be written.
func TestAttackWritableBelowReadOnly(t *testing.T) {
	p := newProvider(t, nil)
	for name, script := range attacksOnMounts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for _, sub := range []string{"lib", "deep/lib", "out", "deep/out"} {
				if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(dir, sub, "code"), []byte("good"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			look := func() string {
				var kept []string
				for line := range strings.SplitSeq(hostTree(t, dir), "\n") {
					if !strings.HasPrefix(line, "out") && !strings.HasPrefix(line, "deep/out") {
						kept = append(kept, line)
					}
				}
				return strings.Join(kept, "\n")
			}
			before := look()
			sb := create(t, p, sandbox.Spec{
				ID: sandbox.ID("rw-" + strings.ReplaceAll(name, " ", "-")), Image: "host",
				Mounts: []sandbox.Mount{
					{Source: dir, Target: "/workspace", ReadOnly: true},
					{Source: dir + "/out", Target: "/workspace/out"},
					{Source: dir + "/deep/out", Target: "/workspace/deep/out"},
				},
			})
			for _, target := range []string{"lib", "deep/lib", "out/../lib"} {
				sh(t, sb, strings.ReplaceAll(script, "$T", target))
			}
			sh(t, sb, `cd /workspace/out; ln -s ../lib way; echo evil >way/code; ln ../lib/code hard && echo evil >hard; mv ../lib .; mv /workspace/out /workspace/gone; mv /workspace/deep/out/../lib /workspace/out/`)
			if got := look(); got != before {
				t.Errorf("it was changed to\n%s\nfrom\n%s", got, before)
			}
			if out := sh(t, sb, "echo fine >/workspace/deep/out/own && cat /workspace/deep/out/own"); out.stdout != "fine\n" {
				t.Errorf("the writable part cannot be written: %+v", out)
			}
		})
	}
}
