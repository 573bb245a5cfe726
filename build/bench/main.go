// Command bench measures Atoll and its alternatives side by side on one
// machine, and writes a document with the results. It compares with Docker,
// whose daemon it starts, with runc and with bubblewrap. It leaves out programs
// that are not installed.
//
//	bench -atoll bin/atoll -doc docs/BENCHMARKS.md
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// config is the configuration from the command line.
type config struct {
	atoll     string
	engine    string
	doc       string
	results   string
	tar       string
	rounds    int
	sandboxes int
	density   int
	only      string // a section; empty: all
}

func main() {
	// The Docker daemon ends with the thread that started it.
	runtime.LockOSThread()
	var c config
	flag.StringVar(&c.atoll, "atoll", "bin/atoll", "the executable to measure; every user must be able to run it")
	flag.StringVar(&c.engine, "engine", "bin/atoll-engine", "the executable for kernels of the library; every user must be able to run it")
	flag.StringVar(&c.doc, "doc", "", "document to write the results into; they are always printed")
	flag.StringVar(&c.results, "results", "build/bench/results", "directory for the samples, if there is a document")
	flag.StringVar(&c.tar, "tar", "bin/bench-rootfs.tar", "root file system with a shell, coreutils and python3; built with mmdebstrap if missing")
	flag.IntVar(&c.rounds, "rounds", 15, "number of rounds of the short measurements")
	flag.IntVar(&c.sandboxes, "sandboxes", 40, "number of idle sandboxes for measuring memory")
	flag.IntVar(&c.density, "density", 300, "number of sandboxes that must exist at the same time")
	flag.StringVar(&c.only, "only", "", "measure only this section, such as hop")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, c); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, c config) (err error) {
	began, before := time.Now(), load()
	b, err := prepare(ctx, c)
	if b != nil {
		defer func() { err = errors.Join(err, b.close()) }()
	}
	if err != nil {
		return err
	}
	for _, section := range []struct {
		name    string
		measure func(context.Context) error
	}{
		{"create", b.create},
		{"exec", b.exec},
		{"hop", b.hop},
		{"command line", b.help},
		{"inside", b.inside},
		{"files", b.files},
		{"fork", b.fork},
		{"egress", b.egress},
		{"streams", b.streams},
		{"sessions", b.sessions},
		{"cycles", b.cycles},
		{"memory", b.memory},
		{"density", b.density},
	} {
		if c.only != "" && c.only != section.name {
			continue
		}
		at := time.Now()
		if err := section.measure(ctx); err != nil {
			return fmt.Errorf("%s: %w", section.name, err)
		}
		fmt.Fprintf(os.Stderr, "%s: %s\n", section.name, time.Since(at).Round(100*time.Millisecond))
	}
	heading := b.heading(ctx, began, before)
	fmt.Fprint(os.Stdout, heading+"\n"+table(b.rows))
	if c.doc == "" {
		return nil
	}
	return write(c.doc, c.results, began, heading, b.rows)
}

// prepare starts and installs the measured programs. The caller closes the
// result even if prepare fails.
func prepare(ctx context.Context, c config) (*bench, error) {
	for _, file := range []*string{&c.atoll, &c.engine, &c.tar} {
		abs, err := filepath.Abs(*file)
		if err != nil {
			return nil, err
		}
		*file = abs
	}
	if err := makeRootfs(ctx, c.tar); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "atoll-bench-")
	if err != nil {
		return nil, err
	}
	b := &bench{config: c, dir: dir, state: filepath.Join(dir, "state"), addr: outside()}
	b.cli = program{args: []string{c.atoll, "--state-dir", b.state}}
	if b.addr != nil {
		// Without this, the gateway refuses an address of the machine's own network.
		b.cli.env = []string{"ATOLL_EGRESS_ALLOW=" + b.addr.String() + "/32"}
	}
	rootfs := filepath.Join(dir, "rootfs")
	if err := os.Mkdir(rootfs, 0o755); err != nil {
		return b, err
	}
	if err := (program{args: []string{"tar", "-C", rootfs, "-xf", c.tar}}).run(ctx); err != nil {
		return b, err
	}
	if err := b.cli.with("image", "import", "-q", "tar:"+c.tar, imageName).run(ctx); err != nil {
		return b, err
	}
	if b.lib, err = openLibrary(b.state, c.engine, imageName); err != nil {
		return b, err
	}
	return b, b.findPeers(ctx, rootfs)
}

// findPeers starts and installs the alternatives to Atoll.
func (b *bench) findPeers(ctx context.Context, rootfs string) error {
	var err error
	if b.docker, err = startDocker(ctx, filepath.Join(b.dir, "docker")); err != nil {
		b.docker = nil
		b.notes = append(b.notes, "Docker could not be started here, so that only runc and bubblewrap are compared with")
		fmt.Fprintln(os.Stderr, "no Docker:", err)
	} else if err := b.docker.cli.with("import", b.tar, imageName).run(ctx); err != nil {
		return err
	}
	b.bwrap, b.hasBwrap = bubblewrap(rootfs)
	if r, found := newRunc(b.dir, rootfs); found && os.Geteuid() == 0 {
		b.runc = r
	}
	return nil
}

// makeRootfs creates the root file system for all programs, once.
func makeRootfs(ctx context.Context, tar string) error {
	if _, err := os.Stat(tar); err == nil {
		return nil
	}
	fmt.Fprintln(os.Stderr, "making a root file system, once")
	tmp := tar + ".new.tar"
	defer os.Remove(tmp)
	// For the machine's own release, mmdebstrap uses the configured mirror.
	release, _ := os.ReadFile("/etc/os-release")
	suite := cmp.Or(value(string(release), "VERSION_CODENAME", "="), "stable")
	build := program{args: []string{"mmdebstrap", "--quiet", "--variant=essential", "--include=python3-minimal", suite, tmp}}
	if err := build.run(ctx); err != nil {
		return fmt.Errorf("%w (install mmdebstrap, or name a root file system with -tar)", err)
	}
	return os.Rename(tmp, tar)
}

// close ends all programs and removes all files.
func (b *bench) close() error {
	var failed []error
	if b.lib != nil {
		failed = append(failed, b.lib.close())
	}
	// The command line's sandboxes, and the daemon that it started for them, live
	// until they are removed.
	failed = append(failed, b.cli.with("rm", "--force", "--all").run(context.Background()),
		b.cli.with("down").run(context.Background()))
	if b.docker != nil {
		failed = append(failed, b.docker.stop())
	}
	return errors.Join(append(failed, os.RemoveAll(b.dir))...)
}
