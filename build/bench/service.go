package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// fork measures the time from asking for a copy of what runs to the first
// output of a command in the copy. Docker cannot copy memory, so the copy of a
// container is one of its files.
func (b *bench) fork(ctx context.Context) (err error) {
	in, err := b.lib.create(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Destroy(context.WithoutCancel(ctx))) }()
	cs := []contestant{{"library", b.lib.fork(in, hello)}}
	if b.docker != nil {
		id, err := b.startContainer(ctx)
		if err != nil {
			return err
		}
		cs = append(cs, contestant{"docker", b.docker.copy(id, hello)})
	}
	m, err := race(ctx, b.rounds, cs)
	if err != nil {
		return err
	}
	b.compare("fork of a running sandbox, to the first output: library", firsts(m, "library"),
		"`docker commit` and `docker run`, without memory", firsts(m, "docker"), atMostOneIn(2))
	return nil
}

// fork copies a sandbox with its memory, runs a command in the copy and destroys
// it.
func (l *library) fork(in driver.Instance, argv []string) func(context.Context) (timing, error) {
	return func(ctx context.Context) (t timing, err error) {
		began := time.Now()
		spec := l.spec(l.image)
		from, _ := driver.As[driver.Snapshotter](in)
		snap, err := from.Snapshot(ctx, driver.SnapshotOptions{ID: "of-" + string(spec.ID), Memory: true, Transient: true})
		if err != nil {
			return t, err
		}
		defer func() { err = errors.Join(err, l.provider.RemoveSnapshot(context.WithoutCancel(ctx), snap.Ref)) }()
		twin, _, err := l.provider.Restore(ctx, spec, snap.Ref)
		if err != nil {
			return t, err
		}
		p, err := twin.Exec(ctx, &sandbox.Command{Args: argv})
		if err == nil {
			_, err = io.ReadFull(p.Stdout(), make([]byte, 1))
			t.first = time.Since(began)
			err = errors.Join(err, succeeded(ctx, p))
		}
		err = errors.Join(err, twin.Destroy(context.WithoutCancel(ctx)))
		t.whole = time.Since(began)
		return t, err
	}
}

// copy makes an image of a container, runs a command in a container of it and
// removes both.
func (d *docker) copy(id string, argv []string) func(context.Context) (timing, error) {
	return func(ctx context.Context) (t timing, err error) {
		began := time.Now()
		image, err := d.cli.with("commit", id).output(ctx)
		if err != nil {
			return t, err
		}
		made := time.Since(began)
		t, err = d.cli.with(append([]string{"run", "--rm", "--network", "none", image}, argv...)...).time(ctx)
		t.first += made
		err = errors.Join(err, d.cli.with("rmi", image).run(context.WithoutCancel(ctx)))
		t.whole = time.Since(began)
		return t, err
	}
}

// download is what a program inside gets for one request.
const download = 256_000_000

// gets fetches /small n times, each on a new connection, and then /big, with
// the shell alone. It writes the microseconds of both.
const gets = `get() { exec 3<>"/dev/tcp/$1/$2"; printf 'GET %s HTTP/1.0\r\nHost: %s:%s\r\n\r\n' "$3" "$1" "$2" >&3; }
a=$EPOCHREALTIME
i=0; while [ $i -lt 50 ]; do get "$1" "$2" /small; read -r line <&3 || exit 1; exec 3>&-; i=$((i+1)); done
b=$EPOCHREALTIME
get "$1" "$2" /big; cat <&3 >/dev/null
c=$EPOCHREALTIME
echo $((${b/./} - ${a/./})) $((${c/./} - ${b/./}))`

// outside returns an address of this machine that a sandbox can reach, nil
// without one. The loopback address is each sandbox's own.
func outside() net.IP {
	all, _ := net.InterfaceAddrs()
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			return n.IP
		}
	}
	return nil
}

// egress measures requests of programs inside to a server on this machine: ours
// go through the gateway, which filters them, and Docker's use the host's own
// network.
func (b *bench) egress(ctx context.Context) (err error) {
	if b.addr == nil {
		b.notes = append(b.notes, "this machine has no address except the loopback, so that requests of programs inside were not measured")
		return nil
	}
	l, err := net.Listen("tcp", net.JoinHostPort(b.addr.String(), "0"))
	if err != nil {
		return err
	}
	mux, data := http.NewServeMux(), make([]byte, download)
	mux.HandleFunc("/small", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("/big", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(data) })
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	defer server.Close()
	go func() { _ = server.Serve(l) }()
	host, port, _ := net.SplitHostPort(l.Addr().String())
	argv := []string{"bash", "-c", gets, "bash", host, port}

	const name = "bench-egress"
	if err := b.cli.with("run", "-d", "--name", name, "--image", imageName, "--egress", net.JoinHostPort(host, port), "--", "sleep", "infinity").run(ctx); err != nil {
		return err
	}
	ways := map[string]program{
		"atoll": b.cli.with(append([]string{"exec", name, "--"}, argv...)...),
	}
	if b.docker != nil {
		id, err := b.docker.cli.with(append([]string{"run", "-d", "--network", "host", imageName}, idle...)...).output(ctx)
		if err != nil {
			return err
		}
		ways["docker"] = b.docker.cli.with(append([]string{"exec", id}, argv...)...)
	}
	var cs []contestant
	big := map[string]sample{}
	for who, p := range ways {
		cs = append(cs, contestant{who, func(ctx context.Context) (t timing, err error) {
			out, err := p.output(ctx)
			if err != nil {
				return t, err
			}
			small, large, _ := strings.Cut(out, " ")
			each, err1 := strconv.Atoi(small)
			all, err2 := strconv.Atoi(large)
			big[who] = append(big[who], float64(all)/1e3)
			return timing{whole: time.Duration(each) * time.Microsecond / 50}, errors.Join(err1, err2)
		}})
	}
	m, err := race(ctx, max(3, b.rounds/3), cs)
	if err != nil {
		return err
	}
	rate := func(who string) figure {
		if len(big[who]) == 0 {
			return figure{}
		}
		return megabytesPerSecond(throughput(big[who][1:], download)) // the first round does not count
	}
	const peer = "Docker with `--network host`"
	b.compare("request out of a sandbox, connection included", wholes(m, "atoll"), peer, wholes(m, "docker"))
	b.compare("256 MB down, into a sandbox", rate("atoll"), peer, rate("docker"))
	return nil
}

// client returns a client of the daemon that the command line started with its
// first sandbox. The caller closes it.
func (b *bench) client() (*atoll.Client, error) {
	return atoll.New(atoll.Options{Host: "unix://" + filepath.Join(b.state, atoll.SocketName)})
}

// watchers is how many viewers a terminal has, besides the one who types.
const watchers = 20

// streams measures the time from a key to its echo on a terminal.
func (b *bench) streams(ctx context.Context) (err error) {
	c, err := b.client()
	if err != nil {
		return err
	}
	defer c.Close()
	sb, err := c.Create(ctx, sandbox.Spec{Image: imageName})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sb.Destroy(context.WithoutCancel(ctx))) }()
	cat, err := sb.Exec(ctx, sandbox.Command{Args: []string{"cat"}, TTY: &sandbox.WindowSize{Rows: 24, Cols: 80}, Stdin: true, Hold: time.Minute})
	if err != nil {
		return err
	}
	defer cat.Close()
	if err := cat.Background(ctx); err != nil {
		return err
	}
	typist, err := sb.Terminal(ctx, atoll.TerminalOptions{Process: cat.Info().ID})
	if err != nil {
		return err
	}
	defer typist.Close()
	cs := []contestant{{"terminal", echo(typist.Stdin(), typist.Stdout())}}
	if b.docker != nil {
		id, err := b.startContainer(ctx)
		if err != nil {
			return err
		}
		out, conn, err := b.docker.api.terminal(ctx, id, []string{"cat"})
		if err != nil {
			return err
		}
		defer conn.Close()
		cs = append(cs, contestant{"docker", echo(conn, out)})
	}
	alone, err := race(ctx, 10*b.rounds, cs)
	if err != nil {
		return err
	}
	all := []io.Reader{typist.Stdout()}
	for range watchers {
		v, err := sb.Terminal(ctx, atoll.TerminalOptions{Process: cat.Info().ID, Watch: true})
		if err != nil {
			return err
		}
		defer v.Close()
		all = append(all, v.Stdout())
	}
	cs[0] = contestant{"terminal", echo(typist.Stdin(), all...)}
	crowd, err := race(ctx, 10*b.rounds, cs)
	if err != nil {
		return err
	}
	const peer = "terminal of Docker's API"
	b.compare("key to echo, shared terminal", wholes(alone, "terminal"), peer, wholes(alone, "docker"), atMost(15, "ms"))
	b.compare(fmt.Sprintf("key to echo at the last of %d viewers", watchers+1), wholes(crowd, "terminal"), peer+", one viewer", wholes(crowd, "docker"))
	return nil
}

// echo types a word that was not typed before, and waits until every screen has
// shown it.
func echo(in io.Writer, screens ...io.Reader) func(context.Context) (timing, error) {
	n := 0
	return func(context.Context) (t timing, err error) {
		n++
		word := fmt.Sprintf("<%d>", n)
		began := time.Now()
		if _, err := io.WriteString(in, word); err != nil {
			return t, err
		}
		failed := make([]error, len(screens))
		var g sync.WaitGroup
		for i, s := range screens {
			g.Go(func() { failed[i] = shows(s, word) })
		}
		g.Wait()
		t.whole = time.Since(began)
		return t, errors.Join(failed...)
	}
}

// shows reads until the word has come.
func shows(r io.Reader, word string) error {
	var seen []byte
	buf := make([]byte, 4096)
	for !bytes.Contains(seen, []byte(word)) {
		n, err := r.Read(buf)
		seen = append(seen, buf[:n]...)
		if err != nil {
			return err
		}
	}
	return nil
}

// sessions measures what a session costs beside its sandbox.
func (b *bench) sessions(ctx context.Context) (err error) {
	c, err := b.client()
	if err != nil {
		return err
	}
	defer c.Close()
	s, err := c.Sessions().Create(ctx, sandbox.Spec{Image: imageName}, atoll.SessionOptions{Name: "bench"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Destroy(context.WithoutCancel(ctx))) }()
	sb, err := c.Get(ctx, string(s.Receipt().Sandbox))
	if err != nil {
		return err
	}
	timed := func(do func(context.Context) error) func(context.Context) (timing, error) {
		return func(ctx context.Context) (timing, error) {
			began := time.Now()
			err := do(ctx)
			return timing{whole: time.Since(began)}, err
		}
	}
	m, err := race(ctx, 10*b.rounds, []contestant{
		{"session", timed(func(ctx context.Context) error { _, err := s.Files().Stat(ctx, "/"); return err })},
		{"sandbox", timed(func(ctx context.Context) error { _, err := sb.Files().Stat(ctx, "/"); return err })},
		{"acquire", timed(func(ctx context.Context) error { _, err := s.Acquire(ctx); return err })},
	})
	if err != nil {
		return err
	}
	b.compare("stat of a file: session", wholes(m, "session"), "its sandbox itself", wholes(m, "sandbox"))
	b.rows = append(b.rows, row{what: "acquire a warm session", atoll: wholes(m, "acquire")})
	return nil
}

// cycles measures how many sandboxes several clients make, use and remove.
func (b *bench) cycles(ctx context.Context) (err error) {
	c, err := b.client()
	if err != nil {
		return err
	}
	defer c.Close()
	const together = 8
	many := func(one func(context.Context) error) func(context.Context) (timing, error) {
		return func(ctx context.Context) (timing, error) {
			began := time.Now()
			failed := make([]error, together)
			var g sync.WaitGroup
			for i := range failed {
				g.Go(func() {
					for range 3 {
						failed[i] = errors.Join(failed[i], one(ctx))
					}
				})
			}
			g.Wait()
			return timing{whole: time.Since(began) / (3 * together)}, errors.Join(failed...)
		}
	}
	cs := []contestant{{"atoll", many(func(ctx context.Context) error {
		sb, err := c.Create(ctx, sandbox.Spec{Image: imageName})
		if err != nil {
			return err
		}
		_, err = sb.Run(ctx, sandbox.Command{Args: hello})
		return errors.Join(err, sb.Destroy(context.WithoutCancel(ctx)))
	})}}
	if b.docker != nil {
		run := b.docker.api.run(imageName, hello)
		cs = append(cs, contestant{"docker", many(func(ctx context.Context) error { _, err := run(ctx); return err })})
	}
	m, err := race(ctx, max(3, b.rounds/3), cs)
	if err != nil {
		return err
	}
	rate := func(who string) figure {
		if m[who] == nil {
			return figure{}
		}
		return perSecond(throughput(m[who].whole, 1e6)) // one cycle counts as a megabyte
	}
	b.compare(fmt.Sprintf("create, command and removal, %d clients: daemon", together), rate("atoll"), "Docker's API", rate("docker"), atLeast(15, "per s"))
	return nil
}
