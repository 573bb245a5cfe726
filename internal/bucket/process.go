package bucket

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/blob"
	"github.com/atoll-run/atoll/sandbox"
)

// argv0 is the argv[0] of the process.
const argv0 = "atoll-bucket"

// nobody is the uid of the process.
const nobody = 65534

// rootName is the directory, next to the mounts, that processes use as their
// root.
const rootName = ".root"

// settings are sent to a process on its standard input.
type settings struct {
	Bucket, Prefix, Endpoint, Region string
	AccessKey, SecretKey, Token      string // empty: use the machine's role
	Spool                            int64
}

// report is the response on its standard output.
type report struct {
	Code    sandbox.Code `json:",omitempty"` // empty: the bucket is being served
	Message string       `json:",omitempty"`
}

// serve mounts a bucket and starts the process that serves it. On an error it
// undoes both.
func (b *Buckets) serve(ctx context.Context, at string, where blob.S3) (err error) {
	root, err := b.root()
	if err != nil {
		return failed("mount", err)
	}
	defer root.Close()
	told, err := b.settings(where)
	if err != nil {
		return err
	}
	dev, err := mount(at)
	if err != nil {
		return failed("mount", err)
	}
	defer dev.Close()
	defer func() {
		if err != nil {
			err = errors.Join(err, detach(at, 1))
		}
	}()
	in, out, proc, err := start(b.opts.Executable, dev, root)
	if err != nil {
		return failed("mount", err)
	}
	b.reap(proc)
	stop := context.AfterFunc(ctx, func() { _ = proc.Kill() })
	defer stop()
	if err := converse(in, out, told); err != nil {
		_ = proc.Kill() // it may have ended
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return err
	}
	return nil
}

// reap waits for a process, to avoid a zombie. The process may outlive this
// one.
func (b *Buckets) reap(proc *os.Process) {
	go func() { _, _ = proc.Wait() }()
}

// settings returns the settings for the process of a bucket. It looks up local
// credentials here, because the process cannot read files.
func (b *Buckets) settings(where blob.S3) (settings, error) {
	s := settings{Bucket: where.Bucket, Prefix: where.Prefix, Endpoint: where.Endpoint, Region: where.Region, Spool: b.opts.Spool}
	found, err := blob.LocalCredentials().GetWithContext(nil)
	if err != nil {
		return s, &sandbox.Error{
			Code: sandbox.CodeDenied, Op: "bucket.mount", Message: "the credentials for the bucket cannot be read", Cause: err,
			Hint: "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for the daemon, or use a credentials file",
		}
	}
	s.AccessKey, s.SecretKey, s.Token = found.AccessKeyID, found.SecretAccessKey, found.SessionToken
	return s, nil
}

// root creates the root directory of processes, with the resolver configuration
// and a directory for spools.
func (b *Buckets) root() (*os.File, error) {
	dir := filepath.Join(b.opts.Dir, rootName)
	spool, etc := filepath.Join(dir, "spool"), filepath.Join(dir, "etc")
	if err := errors.Join(os.MkdirAll(spool, 0o700), os.MkdirAll(etc, 0o755)); err != nil {
		return nil, err
	}
	for _, name := range []string{"resolv.conf", "hosts", "nsswitch.conf"} {
		text, err := os.ReadFile(filepath.Join("/etc", name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		tmp := filepath.Join(etc, "new-"+name)
		if err := errors.Join(err, os.WriteFile(tmp, text, 0o644), os.Rename(tmp, filepath.Join(etc, name))); err != nil {
			return nil, err
		}
	}
	// Set modes regardless of the umask: no other user may enter, and only the
	// spool is writable.
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(etc, 0o755), os.Chown(spool, nobody, nobody)); err != nil {
		return nil, err
	}
	return os.Open(dir)
}

// start starts a process that serves the mount of dev.
func start(exe string, dev, root *os.File) (in io.WriteCloser, out io.ReadCloser, proc *os.Process, err error) {
	childIn, in, err := os.Pipe()
	if err != nil {
		return nil, nil, nil, err
	}
	defer childIn.Close()
	out, childOut, err := os.Pipe()
	if err != nil {
		in.Close()
		return nil, nil, nil, err
	}
	defer childOut.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err == nil {
		defer null.Close()
		proc, err = os.StartProcess(exe, []string{argv0}, &os.ProcAttr{
			Dir: "/", Env: environment(), Files: []*os.File{childIn, childOut, null, dev, root}, Sys: isolated(),
		})
	}
	if err != nil {
		in.Close()
		out.Close()
	}
	return in, out, proc, err
}

// environment returns the environment of the process: the location of TLS
// certificates, and no credentials.
func environment() []string {
	env := []string{"GOTRACEBACK=single"}
	for _, name := range []string{"SSL_CERT_FILE", "SSL_CERT_DIR"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

// isolated puts a process into new namespaces, except for the network.
func isolated() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Setsid:      true,
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		UidMappings: []syscall.SysProcIDMap{{HostID: nobody, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: nobody, Size: 1}},
		// Without this, it would keep the supplementary groups of the daemon.
		GidMappingsEnableSetgroups: true,
		Credential:                 &syscall.Credential{},
	}
}

// converse sends the settings to a process, and waits until it serves the
// bucket.
func converse(in io.WriteCloser, out io.ReadCloser, told settings) error {
	defer out.Close()
	err := errors.Join(json.NewEncoder(in).Encode(told), in.Close())
	var answer report
	if err == nil {
		err = json.NewDecoder(io.LimitReader(out, 16<<10)).Decode(&answer)
	}
	switch {
	case err != nil:
		return failed("mount", errors.New("the process that serves it has ended"))
	case answer.Code == "":
		return nil
	}
	return &sandbox.Error{
		Code: answer.Code, Op: "bucket.mount", Message: answer.Message,
		Hint: "check the address of the bucket, and that the daemon's credentials may use it",
	}
}
