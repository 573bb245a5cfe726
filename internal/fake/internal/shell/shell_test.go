package shell_test

import (
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/fake/internal/coreutils"
	"github.com/atoll-run/atoll/internal/fake/internal/kernel"
	"github.com/atoll-run/atoll/internal/fake/internal/memfs"
	"github.com/atoll-run/atoll/internal/fake/internal/shell"
)

// machine returns a kernel with all programs.
func machine(t testing.TB) *kernel.Kernel {
	files := memfs.New()
	programs := coreutils.Programs()
	programs["sh"] = shell.Main(coreutils.Builtins())
	k := kernel.New(files, programs)
	for _, dir := range []string{"/bin", "/tmp", "/dev"} {
		if err := files.Mkdir(memfs.Cred{}, dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	for name := range programs {
		if err := k.Install("/bin/" + name); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"null", "zero"} {
		if err := files.Mkdev(memfs.Cred{}, "/dev/"+name, 0o666, name); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(k.Stop)
	return k
}

// sh runs a script in /tmp and returns both outputs in one, and the status.
func sh(t testing.TB, k *kernel.Kernel, script string, args ...string) (string, int) {
	pipe := kernel.NewPipe()
	r := pipe.Reader()
	p, err := k.Start(kernel.Spawn{
		Args: append([]string{"sh", "-c", script, "sh"}, args...), Env: []string{"PATH=/bin", "HOME=/tmp", "KEPT=x"}, Dir: "/tmp",
		Files: []kernel.File{kernel.Null(), pipe.Writer(), pipe.Writer()},
	})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	buf := make([]byte, 4096)
	for {
		n, err := r.Read(context.Background(), buf)
		out.Write(buf[:n])
		if err == io.EOF {
			break
		}
	}
	<-p.Done()
	code, _ := p.Exit()
	return out.String(), code
}

func TestScripts(t *testing.T) {
	for _, c := range []struct {
		script, want string
		status       int
	}{
		{"echo a b  c", "a b c\n", 0},
		{"x='1  2'; echo $x \"$x\" '$x'", "1 2 1  2 $x\n", 0},
		{"echo $((1+2*3)) ${x:-d} ${KEPT#x}. ${#KEPT}", "7 d . 1\n", 0},
		{"for i in 1 2 3; do [ $i = 2 ] && continue; echo $i; done", "1\n3\n", 0},
		{"for i in 1 2; do for j in a b; do echo $i$j; continue 2; done; done", "1a\n2a\n", 0},
		{"i=0; while :; do i=$((i+1)); [ $i = 3 ] && break; done; echo $i", "3\n", 0},
		{"until true; do echo no; done; echo $?", "0\n", 0},
		{"if false; then echo a; elif true; then echo b; else echo c; fi", "b\n", 0},
		{"if false; then echo a; fi; echo $?", "0\n", 0},
		{"case abc in x) echo x;; a*|b) echo ab;; *) echo else;; esac", "ab\n", 0},
		{"f() { local v=1; g=2; echo $1 $#; return 4; }; v=0; f x y; echo $? $v $g", "x 2\n4 0 2\n", 0},
		{"false || echo or; true && echo and; ! true; echo $?", "or\nand\n1\n", 0},
		{"echo a | cat | wc -c", "2\n", 0},
		{"(exit 3); echo $?; (x=1; cd /; pwd); pwd; echo [$x]", "3\n/\n/tmp\n[]\n", 0},
		{"x=$(echo sub; exit 5); echo $x $?", "sub 5\n", 0},
		{"echo `echo back`", "back\n", 0},
		{"set -e; false; echo no", "", 1},
		{"set -e; if false; then :; fi; false || true; ! true; echo yes", "yes\n", 0},
		{"set -e; (false; echo no); echo no", "", 1},
		{"set -u; echo $nope; echo no", "sh: nope: unbound variable\n", 2},
		{"trap 'echo bye' EXIT; echo hi", "hi\nbye\n", 0},
		{"trap 'echo bye' EXIT; exit 7", "bye\n", 7},
		{"trap 'echo got' USR1; kill -USR1 $$; echo after", "got\nafter\n", 0},
		{"(trap 'echo child' EXIT; kill -9 $$); echo no", "child\n", 137},
		{"sleep 1000 & kill $!; wait $!; echo $?", "143\n", 0},
		{"(exit 4) & wait $!; echo $?; wait 999; echo $?", "4\n127\n", 0},
		{"echo x >f; echo y >>f; cat <f; cat f f | wc -l", "x\ny\n4\n", 0},
		{"{ echo out; echo err >&2; } 2>e >o; cat o; cat e", "out\nerr\n", 0},
		{"exec 3>f; echo three >&3; exec 3>&-; cat f; echo x >&3", "three\nsh: 3: bad file descriptor\n", 1},
		{"exec >f; echo hidden; exec cat /dev/null; echo no", "", 0},
		{"cat <<-E\n\tone\n\t$KEPT\nE", "one\nx\n", 0},
		{"echo missing >no/such; echo $?", "sh: open /tmp/no/such: no such file or directory\n1\n", 0},
		{"nonesuch; echo $?", "nonesuch: no such file or directory\n127\n", 0},
		{"A=1 env | while read l; do case $l in A=*) echo $l;; esac; done; echo [$A]", "A=1\n[]\n", 0},
		{"export B=2; unset KEPT; env -u PATH /bin/sh -c 'echo $B[$KEPT]'", "2[]\n", 0},
		{"readonly r=1; r=2; echo no", "sh: r: is read only\n", 2},
		{"printf 'a b\\nc\\n' | { read x y; read z; echo $y $z; }", "b c\n", 0},
		{"touch a.c b.c; echo *.c *.none", "a.c b.c *.none\n", 0},
		{"set -- a 'b c'; for i; do echo \"<$i>\"; done; shift; echo $# \"$*\"", "<a>\n<b c>\n1 b c\n", 0},
		{"eval 'echo $KEPT'; command echo hi; command -v cat nope; echo $?", "x\nhi\n/bin/cat\n127\n", 0},
		{"umask 077; : >m; ls -l m | head -c 5", "-0600", 0},
		{"echo $$ | wc -w; sh -c 'echo $PPID' >p; [ $(cat p) = $$ ] && echo child", "1\nchild\n", 0},
		{"yes | head -n 2", "y\ny\n", 0},
		{"f() { f; }; echo ${x?is unset}; echo no", "sh: x: is unset\n", 2},
		{"[ 1 -lt 2 -a ! -e none ] && [ \\( a = b -o -n c \\) ] && echo t; [ x -eq 1 ]; echo $?", "t\n[: illegal number\n2\n", 0},
		{"f() { f; }; f; echo no", "sh: the recursion is too deep\n", 2},
		{"x='eval \"$x\"'; eval \"$x\"; echo no", "sh: the recursion is too deep\n", 2},
		{"f() { (f); }; f", "sh: the recursion is too deep\n", 2},
		{"if then", "sh: sh:1:1: `if` must be followed by a statement list\n", 2},
	} {
		if got, status := sh(t, machine(t), c.script); got != c.want || status != c.status {
			t.Errorf("%s\n got %q, status %d\nwant %q, status %d", c.script, got, status, c.want, c.status)
		}
	}
}

// TestFIFO: a reader and a writer that open a named pipe wait for each other.
func TestFIFO(t *testing.T) {
	got, status := sh(t, machine(t), "mkfifo p; (echo through >p) & read x <p; wait; echo $x")
	if got != "through\n" || status != 0 {
		t.Errorf("got %q, status %d", got, status)
	}
}

// TestKill: everything that can block ends when it is killed.
func TestKill(t *testing.T) {
	for _, script := range []string{
		"sleep 1000", "cat </dev/zero >/dev/null", "while :; do :; done", "mkfifo p; cat p", "mkfifo p; echo x >p", "yes >/dev/null",
		"sleep 1000 | cat", "x=$(sleep 1000)", "(sleep 1000)", "sleep 1000 & wait", "while true; do (sleep 1000); done", "f() { f & f & wait; }; while :; do f; done",
	} {
		k := machine(t)
		p, err := k.Start(kernel.Spawn{Args: []string{"sh", "-c", "echo x >started; " + script}, Env: []string{"PATH=/bin"}, Dir: "/tmp", Files: []kernel.File{kernel.Null(), kernel.Null(), kernel.Null()}})
		if err != nil {
			t.Fatal(err)
		}
		for {
			if _, err := k.FS.Stat(memfs.Cred{}, "/tmp/started", true); err == nil {
				break
			}
			time.Sleep(time.Millisecond)
		}
		k.Stop() // Hangs if anything does not end.
		<-p.Done()
		if code, sig := p.Exit(); code != 137 || sig != 9 {
			t.Errorf("%s: code %d, signal %d", script, code, sig)
		}
	}
}

func TestTerminal(t *testing.T) {
	k := machine(t)
	tty := k.NewTTY(80, 24)
	out := tty.Output()
	p, err := k.Start(kernel.Spawn{
		Args: []string{"sh", "-c", "read x; echo \"[$x]\"; stty -echo; read y; echo \"[$y]\"; cat; echo end"}, Env: []string{"PATH=/bin"}, Dir: "/",
		Files: []kernel.File{tty.Slave(), tty.Slave(), tty.Slave()}, TTY: tty,
	})
	if err != nil {
		t.Fatal(err)
	}
	var seen strings.Builder
	until := func(want string) {
		buf := make([]byte, 256)
		for !strings.HasSuffix(seen.String(), want) {
			n, err := out.Read(t.Context(), buf)
			if err != nil {
				t.Fatalf("%v after %q, waiting for %q", err, seen.String(), want)
			}
			seen.Write(buf[:n])
		}
	}
	input := func(s string) {
		if _, err := tty.Input(t.Context(), []byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	input("ab\x7fc\r")
	until("ab\b \bc\r\n[ac]\r\n")
	for _, quiet := tty.Mode(); !quiet; _, quiet = tty.Mode() {
		time.Sleep(time.Millisecond)
	}
	input("hidden\n")
	until("[hidden]\r\n")
	input("x\n\x04")
	until("x\r\nend\r\n")
	<-p.Done()
	tty.HangUp()
	if _, err := tty.Input(t.Context(), []byte("x")); err == nil {
		t.Error("typing on a terminal that was hung up succeeds")
	}
}

// FuzzScript: no script breaks the shell, and each can be killed.
func FuzzScript(f *testing.F) {
	for _, s := range []string{"echo a | cat", "f() { f; }; f", "while :; do :; done", "trap 'exit' 1; kill -1 $$", "exec 9<&0 >&-", "cat <<E\n$(x)\nE", ": ${x:=$((1/0))}", "eval 'eval eval'", "mkfifo p; cat p & wait"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, script string) {
		k := machine(t)
		p, err := k.Start(kernel.Spawn{Args: []string{"sh", "-c", script}, Env: []string{"PATH=/bin"}, Dir: "/tmp", Files: []kernel.File{kernel.Null(), kernel.Null(), kernel.Null()}})
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-p.Done():
		case <-time.After(50 * time.Millisecond):
		}
		k.Stop()
	})
}

func BenchmarkLoop(b *testing.B) {
	k := machine(b)
	if _, err := k.FS.Open(memfs.Cred{}, "/tmp/x", os.O_CREATE, 0o644); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		sh(b, k, "i=0; while [ $i -lt 1000 ]; do i=$((i+1)); done")
	}
}
