package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/sandbox"
)

// copyCase is a copy that is made three times: by cp -R, by atoll cp into a
// sandbox, and by atoll cp out of one.
type copyCase struct {
	name string
	// setup makes src and dst in the current directory. Each side has both.
	setup string
	from  string // below src
	to    string // below dst
	// want is the content of dst afterwards, if it is not what cp -R leaves; fails
	// says that the copy fails, and nothing about dst. why is the reason.
	want  string
	fails bool
	why   string
	// in and out are for cases that exist in one direction only.
	onlyIn, onlyOut bool
}

const asDocker = "as docker cp does"

var copyCases = []copyCase{
	// A file.
	{name: "file to a new name", setup: "echo a >src/f", from: "f", to: "g"},
	{name: "file into a directory", setup: "echo a >src/f; mkdir dst/d", from: "f", to: "d"},
	{name: "file into a directory with a slash", setup: "echo a >src/f; mkdir dst/d", from: "f", to: "d/"},
	{name: "file onto a file", setup: "echo a >src/f; echo b >dst/g", from: "f", to: "g"},
	{name: "file into a directory that has it", setup: "echo a >src/f; mkdir dst/d; echo b >dst/d/f", from: "f", to: "d"},
	{name: "file with a mode", setup: "echo a >src/f; chmod 750 src/f", from: "f", to: "g"},
	{name: "executable onto a file", setup: "echo a >src/f; chmod 755 src/f; echo b >dst/g; chmod 600 dst/g", from: "f", to: "g", want: "- 755 1 g a\n", why: asDocker},
	{name: "file onto a read-only file", setup: "echo a >src/f; echo b >dst/g; chmod 400 dst/g", from: "f", to: "g", want: "- 644 1 g a\n", why: asDocker},
	{name: "file onto one with two names", setup: "echo a >src/f; echo b >dst/g; ln dst/g dst/h", from: "f", to: "g", want: "- 644 1 g a\n- 644 1 h b\n", why: asDocker},
	{name: "file onto a link to a file", setup: "echo a >src/f; echo b >dst/g; ln -s g dst/l", from: "f", to: "l"},
	{name: "file onto a link to a link", setup: "echo a >src/f; echo b >dst/g; ln -s g dst/k; ln -s k dst/l", from: "f", to: "l"},
	{name: "file onto a link to a directory", setup: "echo a >src/f; mkdir dst/d; ln -s d dst/l", from: "f", to: "l"},
	{name: "file onto a broken link", setup: "echo a >src/f; ln -s none dst/l", from: "f", to: "l", fails: true},
	{name: "file onto a directory in a directory", setup: "echo a >src/f; mkdir -p dst/d/f", from: "f", to: "d", fails: true},
	{name: "file to a missing directory", setup: "echo a >src/f", from: "f", to: "no/g", fails: true, onlyOut: true},
	{name: "file to a missing directory with a slash", setup: "echo a >src/f", from: "f", to: "no/", fails: true, onlyOut: true},
	{name: "file to a missing directory inside", setup: "echo a >src/f", from: "f", to: "no/g", want: "d 755 no\n- 644 1 no/g a\n", why: "agents need no mkdir", onlyIn: true},
	{name: "file to a missing directory inside with a slash", setup: "echo a >src/f", from: "f", to: "no/", want: "d 755 no\n- 644 1 no/f a\n", why: "agents need no mkdir", onlyIn: true},
	{name: "file below a file", setup: "echo a >src/f; echo b >dst/g", from: "f", to: "g/h", fails: true},
	{name: "file with a slash", setup: "echo a >src/f", from: "f/", to: "g", fails: true},
	{name: "missing source", setup: "", from: "f", to: "g", fails: true},
	{name: "empty file", setup: ": >src/f", from: "f", to: "g"},
	{name: "odd name", setup: `echo a >"src/ a:b*"`, from: " a:b*", to: "g"},
	// A directory.
	{name: "directory to a new name", setup: "mkdir -p src/d/e; echo a >src/d/e/f", from: "d", to: "n"},
	{name: "directory to a new name with a slash", setup: "mkdir src/d; echo a >src/d/f", from: "d", to: "n/"},
	{name: "directory into a directory", setup: "mkdir src/d dst/e; echo a >src/d/f", from: "d", to: "e"},
	{name: "directory into one that has it", setup: "mkdir -p src/d dst/e/d; echo a >src/d/f; echo b >dst/e/d/g", from: "d", to: "e"},
	{name: "content of a directory", setup: "mkdir src/d dst/e; echo a >src/d/f", from: "d/.", to: "e"},
	{name: "content of a directory to a new name", setup: "mkdir src/d; echo a >src/d/f", from: "d/.", to: "n"},
	{name: "directory onto a file", setup: "mkdir src/d; echo b >dst/g", from: "d", to: "g", fails: true},
	{name: "directory onto a link to a directory", setup: "mkdir src/d dst/e; echo a >src/d/f; ln -s e dst/l", from: "d", to: "l"},
	{name: "directory with a mode", setup: "mkdir -m 750 src/d", from: "d", to: "n"},
	{name: "read-only directory", setup: "mkdir src/d; echo a >src/d/f; chmod 555 src/d", from: "d", to: "n"},
	{name: "empty directory", setup: "mkdir src/d", from: "d", to: "n"},
	{name: "directory over a file of a directory", setup: "mkdir -p src/d/f dst/e/d; echo b >dst/e/d/f", from: "d", to: "e", fails: true},
	// Links.
	{name: "links in a directory", setup: "mkdir src/d; ln -s none src/d/l; ln -s / src/d/m", from: "d", to: "n"},
	{name: "hard links in a directory", setup: "mkdir src/d; echo a >src/d/f; ln src/d/f src/d/g", from: "d", to: "n", want: "d 755 n\n- 644 2 n/f a\n- 644 2 n/g a\n", why: "as cp -a does"},
	// Special files.
	{name: "named pipe", setup: "mkfifo src/p", from: "p", to: "p", fails: true, why: "it has no content to copy"},
	{name: "directory with a named pipe", setup: "mkdir src/d; mkfifo src/d/p; echo a >src/d/f", from: "d", to: "n", want: "d 755 n\n- 644 1 n/f a\n", why: "with a warning"},
}

// showScript lists what is below the current directory, with type, mode, links,
// name, target and content.
const showScript = `find . -mindepth 1 | LC_ALL=C sort | while IFS= read -r f; do
	l=; if [ -h "$f" ]; then l=" -> $(readlink "$f")"; elif [ -f "$f" ]; then l=" $(cat "$f")"; fi
	m=$(stat -c %a "$f"); [ -h "$f" ] && m=777
	n=; [ -d "$f" ] || n=" $(stat -c %h "$f")"
	echo "$(stat -c %A "$f" | cut -c1) $m$n ${f#./}$l"
done`

// TestCopyLikeCp compares atoll cp with cp -R in both directions.
func TestCopyLikeCp(t *testing.T) {
	s := newSoaker(t)
	b := s.sandbox(t, "box")
	for i, tt := range copyCases {
		t.Run(tt.name, func(t *testing.T) {
			setup := "umask 022; mkdir -p src dst; " + tt.setup
			dir := t.TempDir()
			local := func(script string) string {
				t.Helper()
				cmd := exec.Command("sh", "-c", script)
				cmd.Dir = dir
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("%s: %v\n%s", script, err, out)
				}
				return string(out)
			}
			there := filepath.Join("/tmp/cases", string(rune('a'+i/26))+string(rune('a'+i%26)))
			copies := func(program string, args ...string) (ok bool, said string) {
				cmd := exec.Command(program, args...)
				cmd.Dir, cmd.Env = dir, s.env
				out, err := cmd.CombinedOutput()
				return err == nil, string(out)
			}
			t.Cleanup(func() { local("chmod -R u+rwX src dst") })
			local(setup)
			ok, said := copies("cp", "-R", "src/"+tt.from, "dst/"+tt.to)
			want := local("cd dst; " + showScript)
			switch {
			case tt.why != "":
				want = tt.want
			case ok == tt.fails:
				t.Fatalf("cp -R: success %v, %s", ok, said)
			}
			check := func(direction string, ok bool, said, got string) {
				t.Helper()
				switch {
				case ok == tt.fails:
					t.Errorf("%s: success %v, want %v: %s", direction, ok, !tt.fails, said)
				case !tt.fails && got != want:
					t.Errorf("%s: got\n%swant\n%s%s", direction, got, want, said)
				}
			}
			run(t, b, "mkdir -p "+there+"; cd "+there+"; "+setup)
			if !tt.onlyOut {
				ok, said = copies(s.bin, "cp", "./src/"+tt.from, "box:"+there+"/dst/"+tt.to)
				check("in", ok, said, inside(t, b, "cd "+there+"/dst; "+showScript))
			}
			if tt.onlyIn {
				return
			}
			local("chmod -R u+rwX src dst; rm -rf src dst; " + setup) // only root removes what is in a read-only directory
			ok, said = copies(s.bin, "cp", "box:"+there+"/src/"+tt.from, "./dst/"+tt.to)
			check("out", ok, said, local("cd dst; "+showScript))
		})
	}
}

func inside(t *testing.T, b *atoll.Sandbox, script string) string {
	t.Helper()
	res, err := b.Run(t.Context(), sandbox.Command{Shell: script}, atoll.RunOptions{})
	if err != nil || res.Exit.Code != 0 {
		t.Fatalf("%s: %v %+v", script, err, res)
	}
	return string(res.Stdout)
}

// TestCopyLongPaths copies a tree whose paths are longer than a system call
// takes, 4,096 bytes, in and out.
func TestCopyLongPaths(t *testing.T) {
	s := newSoaker(t)
	b := s.sandbox(t, "box")
	dir := t.TempDir()
	name := strings.Repeat("n", 200)
	deep := `for i in $(seq 30); do mkdir ` + name + `; cd -P ` + name + `; done; echo deep >f`
	sh := exec.Command("sh", "-c", "mkdir tree; cd tree; "+deep)
	sh.Dir = dir
	if out, err := sh.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	atollCp := func(args ...string) {
		t.Helper()
		cmd := exec.Command(s.bin, append([]string{"cp"}, args...)...)
		cmd.Dir, cmd.Env = dir, s.env
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%.80q: %v: %.500s", args, err, out)
		}
	}
	atollCp("tree", "box:/tmp/tree")
	// find changes directories one name at a time; a shell would ask for its path.
	if text := run(t, b, "find /tmp/tree -type f -execdir cat {} ';'"); text != "deep" {
		t.Errorf("it contains %q", text)
	}
	atollCp("box:/tmp/tree", "back")
	check := exec.Command("sh", "-c", "cd back; for i in $(seq 30); do cd -P "+name+"; done; grep deep f")
	check.Dir = dir
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
