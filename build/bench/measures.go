package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/atoll-run/atoll/driver"
)

const (
	imageName = "bench:1"
	gigabyte  = 1_000_000_000
)

var (
	hello   = []string{"echo", "ok"}
	nothing = []string{"/bin/true"}
	idle    = []string{"sleep", "infinity"}
)

// bench measures. A peer that is not available is nil.
type bench struct {
	config
	dir      string  // contains all files
	state    string  // Atoll's state directory
	cli      program // atoll
	addr     net.IP  // of this machine, for what programs inside reach
	lib      *library
	docker   *docker
	runc     *runc
	bwrap    program
	hasBwrap bool

	rows  []row
	notes []string
}

func (b *bench) atollVersion(ctx context.Context) string {
	v, err := program{args: []string{b.atoll, "version"}}.output(ctx)
	if err != nil {
		return "atoll of an unknown version"
	}
	return v
}

// compare adds a row about Atoll, if it was measured. A missing peer is left
// out.
func (b *bench) compare(what string, ours figure, peer string, theirs figure, targets ...target) {
	if len(theirs.sample) == 0 {
		peer = ""
		if targets == nil {
			return // the row was only about the peer
		}
	}
	b.rows = append(b.rows, row{what, ours, peer, theirs, targets})
}

// firsts and wholes return the measurements of a contestant, if any.
func firsts(m map[string]*outcome, name string) figure {
	if o := m[name]; o != nil {
		return inMilliseconds(o.first)
	}
	return figure{}
}

func wholes(m map[string]*outcome, name string) figure {
	if o := m[name]; o != nil {
		return inMilliseconds(o.whole)
	}
	return figure{}
}

// create measures the time from nothing to the first output of a first command.
func (b *bench) create(ctx context.Context) (err error) {
	pool, err := openLibrary(b.state, b.engine, imageName)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pool.close()) }()
	if err := pool.provider.Warm(ctx, pool.spec(imageName), b.rounds+1); err != nil {
		return err
	}
	cs := []contestant{
		b.cli.with(append([]string{"run", "--image", imageName, "--"}, hello...)...).as("atoll run"),
		b.cli.with(append([]string{"run", "--"}, hello...)...).as("atoll run, host"),
		{"cold", b.lib.run(imageName, hello)},
		{"cold, host", b.lib.run("host", hello)},
		{"pool", pool.run(imageName, hello)},
	}
	if b.docker != nil {
		cs = append(cs,
			b.docker.cli.with(append([]string{"run", "--rm", "--network", "none", imageName}, hello...)...).as("docker run"),
			contestant{"docker API", b.docker.api.run(imageName, hello)})
	}
	if b.runc != nil {
		bundle, err := b.runc.bundle(ctx, hello)
		if err != nil {
			return err
		}
		cs = append(cs, contestant{"runc run", b.runc.run(bundle)})
	}
	if b.hasBwrap {
		cs = append(cs, b.bwrap.with(hello...).as("bwrap"))
	}
	m, err := race(ctx, b.rounds, cs)
	if err != nil {
		return err
	}
	const run = "`docker run --network none`"
	b.compare("create to first output: library, cold", firsts(m, "cold"), run, firsts(m, "docker run"), atMostOneIn(5))
	b.compare("create to first output: library, from a pool", firsts(m, "pool"), run, firsts(m, "docker run"), atMostOneIn(20))
	b.compare("create to first output: library, cold, host image", firsts(m, "cold, host"), run, firsts(m, "docker run"))
	b.compare("create to first output: library, cold", firsts(m, "cold"), "Docker's API", firsts(m, "docker API"))
	b.compare("create to first output: library, from a pool", firsts(m, "pool"), "Docker's API", firsts(m, "docker API"))
	b.compare("whole command: `atoll run`", wholes(m, "atoll run"), run+" `--rm`", wholes(m, "docker run"))
	b.compare("whole command: `atoll run`, host image", wholes(m, "atoll run, host"), run+" `--rm`", wholes(m, "docker run"))
	b.compare("whole command: `atoll run`", wholes(m, "atoll run"), "`runc run`", wholes(m, "runc run"))
	b.compare("whole command: `atoll run`", wholes(m, "atoll run"), "`bwrap --unshare-all`", wholes(m, "bwrap"))
	return nil
}

// exec measures a further command in running sandboxes and containers.
func (b *bench) exec(ctx context.Context) (err error) {
	in, err := b.lib.create(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Destroy(context.WithoutCancel(ctx))) }()
	const name = "bench-exec"
	if err := b.cli.with("run", "-d", "--name", name, "--image", imageName, "--", "sleep", "infinity").run(ctx); err != nil {
		return err
	}
	cs := []contestant{
		{"library", execIn(in, nothing)},
		b.cli.with(append([]string{"exec", name, "--"}, nothing...)...).as("atoll exec"),
		program{args: nothing}.as("native"),
	}
	if b.docker != nil {
		id, err := b.startContainer(ctx)
		if err != nil {
			return err
		}
		cs = append(cs, b.docker.cli.with(append([]string{"exec", id}, nothing...)...).as("docker exec"),
			contestant{"docker API", b.docker.api.exec(id, nothing)})
	}
	if b.runc != nil {
		id, err := b.runc.start(ctx)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, b.runc.remove(id)) }()
		cs = append(cs, b.runc.cli.with(append([]string{"exec", id}, nothing...)...).as("runc exec"))
	}
	m, err := race(ctx, 2*b.rounds, cs)
	if err != nil {
		return err
	}
	series, err := race(ctx, 5, inARow(b.rounds, cs))
	if err != nil {
		return err
	}
	b.compare("exec of `/bin/true`, each after the one before: library", wholes(series, "library"), "`docker exec`", wholes(series, "docker exec"), atMostOneIn(10), atMost(6, "ms"))
	b.compare("exec of `/bin/true`, each after the one before: library", wholes(series, "library"), "Docker's API", wholes(series, "docker API"))
	b.compare("exec of `/bin/true`: library", wholes(m, "library"), "`docker exec`", wholes(m, "docker exec"), atMostOneIn(10), atMost(6, "ms"))
	b.compare("exec of `/bin/true`: library", wholes(m, "library"), "Docker's API", wholes(m, "docker API"))
	b.compare("exec of `/bin/true`: `atoll exec`", wholes(m, "atoll exec"), "`docker exec`", wholes(m, "docker exec"))
	b.compare("exec of `/bin/true`: `atoll exec`", wholes(m, "atoll exec"), "`runc exec`", wholes(m, "runc exec"))
	b.compare("exec of `/bin/true`: library", wholes(m, "library"), "on the host itself", wholes(m, "native"))
	return nil
}

// startContainer starts an idle Docker container, which ends with the daemon.
func (b *bench) startContainer(ctx context.Context) (string, error) {
	return b.docker.cli.with(append([]string{"run", "-d", "--network", "none", imageName}, idle...)...).output(ctx)
}

// help measures the fixed cost of every call of the command line.
func (b *bench) help(ctx context.Context) error {
	cs := []contestant{program{args: []string{b.atoll, "--help"}}.as("atoll")}
	if b.docker != nil {
		cs = append(cs, program{args: []string{"docker", "--help"}}.as("docker"))
	}
	m, err := race(ctx, b.rounds, cs)
	if err != nil {
		return err
	}
	b.compare("`atoll --help`", wholes(m, "atoll"), "`docker --help`", wholes(m, "docker"), atMost(30, "ms"))
	return nil
}

// scripts are workloads that are slow on gVisor, and some that are not.
var scripts = []struct{ what, script string }{
	{"inside: 200 processes, one after the other", "i=0; while [ $i -lt 200 ]; do /bin/true; i=$((i+1)); done"},
	{"inside: 50,000 small reads and writes", "dd if=/dev/zero of=/dev/null bs=1 count=25000 2>/dev/null"},
	{"inside: start of Python", "python3 -c pass"},
	{"inside: arithmetic in a shell", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"},
}

// inside measures programs inside a sandbox.
func (b *bench) inside(ctx context.Context) (err error) {
	in, err := b.lib.create(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Destroy(context.WithoutCancel(ctx))) }()
	container := ""
	if b.docker != nil {
		if container, err = b.startContainer(ctx); err != nil {
			return err
		}
	}
	for _, s := range scripts {
		argv := []string{"sh", "-c", s.script}
		cs := []contestant{{"atoll", execIn(in, argv)}}
		if b.hasBwrap {
			cs = append(cs, b.bwrap.with(argv...).as("bwrap"))
		}
		if b.docker != nil {
			cs = append(cs, contestant{"docker", b.docker.api.exec(container, argv)})
		}
		m, err := race(ctx, max(3, b.rounds/3), cs)
		if err != nil {
			return err
		}
		b.compare(s.what, wholes(m, "atoll"), "Docker", wholes(m, "docker"))
		b.compare(s.what, wholes(m, "atoll"), "bubblewrap", wholes(m, "bwrap"))
	}
	return nil
}

// files measures writing and reading large files.
func (b *bench) files(ctx context.Context) (err error) {
	in, err := b.lib.create(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Destroy(context.WithoutCancel(ctx))) }()
	m, err := race(ctx, 5, []contestant{{"in", writeFile(in, gigabyte)}, {"out", readFile(in, gigabyte)}})
	if err != nil {
		return err
	}
	copied, err := b.copies(ctx)
	if err != nil {
		return err
	}
	rate := func(f figure, size int64) figure { return megabytesPerSecond(throughput(f.sample, size)) }
	fast := atLeast(400, "MB/s")
	const commands = gigabyte / 4
	b.compare("1 GB in: library", rate(wholes(m, "in"), gigabyte), "`docker cp`", rate(wholes(copied, "docker in"), commands), fast)
	b.compare("1 GB out: library", rate(wholes(m, "out"), gigabyte), "`docker cp`", rate(wholes(copied, "docker out"), commands), fast)
	b.compare("250 MB in: `atoll cp`", rate(wholes(copied, "atoll in"), commands), "`docker cp`", rate(wholes(copied, "docker in"), commands))
	b.compare("250 MB out: `atoll cp`", rate(wholes(copied, "atoll out"), commands), "`docker cp`", rate(wholes(copied, "docker out"), commands))
	return nil
}

// copies measures the copy commands.
func (b *bench) copies(ctx context.Context) (map[string]*outcome, error) {
	local, back := filepath.Join(b.dir, "big"), filepath.Join(b.dir, "back")
	if err := os.WriteFile(local, make([]byte, gigabyte/4), 0o600); err != nil {
		return nil, err
	}
	const name = "bench-files"
	if err := b.cli.with("run", "-d", "--name", name, "--image", imageName, "--", "sleep", "infinity").run(ctx); err != nil {
		return nil, err
	}
	cs := []contestant{
		b.cli.with("cp", local, name+":/root/big").as("atoll in"),
		b.cli.with("cp", name+":/root/big", back).as("atoll out"),
	}
	if b.docker != nil {
		id, err := b.startContainer(ctx)
		if err != nil {
			return nil, err
		}
		cs = append(cs,
			b.docker.cli.with("cp", local, id+":/root/big").as("docker in"),
			b.docker.cli.with("cp", id+":/root/big", back).as("docker out"))
	}
	return race(ctx, 5, cs)
}

// memory measures the memory of one more idle sandbox.
func (b *bench) memory(ctx context.Context) error {
	// The command line of each of our kernels names its state directory.
	kernels := func(_ int, cmdline string) bool { return strings.Contains(cmdline, b.state+"/") }
	var sandboxes []driver.Instance
	ours, err := b.growth(kernels, func() (err error) {
		sandboxes, err = b.fill(ctx, b.sandboxes)
		return err
	})
	if err = errors.Join(err, b.empty(sandboxes)); err != nil {
		return err
	}
	var theirs figure
	if b.docker != nil {
		theirs, err = b.growth(b.docker.belongs, func() error {
			for range b.sandboxes {
				if _, err := b.startContainer(ctx); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	b.compare(fmt.Sprintf("memory per idle sandbox, %d alive", b.sandboxes), ours, "Docker, its shims and daemon", theirs, atMost(20, "MB"))
	return nil
}

// growth measures the memory per sandbox before and after creating many.
func (b *bench) growth(is func(int, string) bool, start func() error) (figure, error) {
	before, err := memoryOf(is)
	if err != nil {
		return figure{}, err
	}
	if err := start(); err != nil {
		return figure{}, err
	}
	after, err := memoryOf(is)
	return inMegabytes(sample{float64(after-before) / float64(b.sandboxes) / 1e6}), err
}

// fill creates n sandboxes, several at a time. They end with this process.
func (b *bench) fill(ctx context.Context, n int) ([]driver.Instance, error) {
	sandboxes := make([]driver.Instance, n)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(2 * runtime.NumCPU())
	for i := range sandboxes {
		g.Go(func() (err error) {
			sandboxes[i], err = b.lib.create(ctx)
			return err
		})
	}
	return sandboxes, g.Wait()
}

// empty destroys sandboxes.
func (b *bench) empty(sandboxes []driver.Instance) error {
	var g errgroup.Group
	g.SetLimit(2 * runtime.NumCPU())
	for _, in := range sandboxes {
		if in != nil {
			g.Go(func() error { return in.Destroy(context.Background()) })
		}
	}
	return g.Wait()
}

// density creates the requested number of sandboxes and checks that each of
// them runs commands while all exist.
func (b *bench) density(ctx context.Context) error {
	free := available()
	began := time.Now()
	sandboxes, err := b.fill(ctx, b.config.density)
	if err != nil {
		return err
	}
	made := time.Since(began)
	free -= available()
	began = time.Now()
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(2 * runtime.NumCPU())
	for _, in := range sandboxes {
		g.Go(func() error { return answers(gctx, in) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	answered := time.Since(began)
	began = time.Now()
	if err := b.empty(sandboxes); err != nil {
		return err
	}
	per := func(d time.Duration) figure { return perSecond(sample{float64(len(sandboxes)) / d.Seconds()}) }
	what := fmt.Sprintf("%d sandboxes alive at once: ", len(sandboxes))
	b.rows = append(b.rows,
		row{what: what + "made", atoll: per(made), targets: []target{atLeast(20, "per s")}},
		row{what: what + "a command in each", atoll: per(answered)},
		row{what: what + "destroyed", atoll: per(time.Since(began))},
		row{what: what + "memory that the machine has less, each", atoll: inMegabytes(sample{float64(free) / float64(len(sandboxes)) / 1e6})})
	return nil
}
