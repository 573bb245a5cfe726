package boxlite

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/servicetest"
	"github.com/atoll-run/atoll/sandbox"
)

// outOfReach reports whether a path is at or below a mount of a box.
func outOfReach(b *box, name string) bool {
	mounts := []string{"/proc", "/sys", "/dev"}
	for _, m := range b.Asked.Volumes {
		mounts = append(mounts, m.Path)
	}
	return slices.ContainsFunc(mounts, func(m string) bool { return name == m || strings.HasPrefix(name, m+"/") })
}

// upload unpacks an archive in a box.
func (s *Server) upload(r *http.Request, b *box) (int, any, error) {
	q := r.URL.Query()
	to := path.Clean(q.Get("path"))
	switch {
	case !path.IsAbs(to):
		return 0, nil, invalid("path must be absolute")
	case outOfReach(b, to):
		return 0, nil, invalid("path is at or under a mount")
	case r.Header.Get("Content-Type") != "application/x-tar":
		return 0, nil, invalid("an archive is expected")
	}
	in, _, err := s.running(b)
	if err != nil {
		return 0, nil, err
	}
	script := `mkdir -p "$1" && tar -xf - -C "$1"`
	if q.Get("overwrite") == "false" {
		script += " -k"
	}
	if q.Get("source_is_dir") == "false" { // a single file, for that path or below that directory
		script = `d=$(mktemp -d) && tar -xf - -C "$d" && if [ -d "$1" ]; then cp -a "$d"/. "$1"; else mkdir -p "$(dirname "$1")" && cp -a "$d"/* "$1"; fi; e=$?; rm -r "$d"; exit $e`
	}
	p, err := in.Exec(r.Context(), &sandbox.Command{Args: []string{"/bin/sh", "-c", script, "sh", to}, User: b.Asked.User, Stdin: true})
	if err != nil {
		return 0, nil, err
	}
	defer p.Close()
	var said bytes.Buffer
	var readers sync.WaitGroup
	readers.Go(func() { _, _ = io.Copy(io.Discard, p.Stdout()) })
	readers.Go(func() { _, _ = io.Copy(&said, p.Stderr()) })
	if _, err := io.Copy(p.Stdin(), r.Body); err != nil {
		return 0, nil, invalid("the archive is cut off: %v", err)
	}
	_ = p.Stdin().Close()
	exit, err := p.Wait(r.Context())
	readers.Wait()
	if err == nil && exit.Code != 0 {
		err = invalid("the archive cannot be unpacked: %s", said.String())
	}
	return http.StatusNoContent, nil, err
}

// download packs the files at a path of a box.
func (s *Server) download(w http.ResponseWriter, r *http.Request) {
	var archive []byte
	_, _, err := s.withBox(func(r *http.Request, b *box) (int, any, error) {
		q := r.URL.Query()
		from := path.Clean(q.Get("path"))
		if !path.IsAbs(from) || outOfReach(b, from) {
			return 0, nil, invalid("path is at or under a mount, or not absolute")
		}
		in, _, err := s.running(b)
		if err != nil {
			return 0, nil, err
		}
		args := []string{"tar", "-cf", "-", "-C", path.Dir(from), cmp.Or(strings.TrimPrefix(path.Base(from), "/"), ".")}
		if q.Get("follow_symlinks") == "true" {
			args = slices.Insert(args, 1, "-h")
		}
		out, err := servicetest.Run(r.Context(), in, sandbox.Command{Args: args}, 64<<20)
		if err == nil && out.Exit.Code != 0 {
			err = notFound("file", from)
		}
		archive = out.Stdout
		return 0, nil, err
	})(r)
	if err != nil {
		refuse(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/x-tar")
	_, _ = w.Write(archive)
}

// snapshot is a copy of the disk of a box.
type snapshot struct {
	ID        string `json:"id"`
	Box       string `json:"box_id"`
	Name      string `json:"name"`
	Created   int64  `json:"created_at"`
	Guest     int64  `json:"guest_disk_bytes"`
	Container int64  `json:"container_disk_bytes"`
	Size      int64  `json:"size_bytes"`

	disk driver.SnapshotRef
}

// stopped calls f with a box that is stopped.
func (s *Server) stopped(b *box, f func() error) error {
	b.op.Lock()
	defer b.op.Unlock()
	if status := s.status(b); status != Stopped {
		return conflict("box is %s; it must be stopped", status)
	}
	return f()
}

func (s *Server) capture(r *http.Request, b *box) (int, any, error) {
	var c struct {
		Name string `json:"name"`
	}
	if err := read(r, &c); err != nil {
		return 0, nil, err
	}
	if !nameForm.MatchString(c.Name) {
		return 0, nil, invalid("name is invalid")
	}
	var made snapshot
	err := s.stopped(b, func() error {
		if b.snapshots[c.Name] != nil {
			return fail(http.StatusConflict, "already_exists", "snapshot already exists: %s", c.Name)
		}
		saved, err := s.keeper().CopySnapshot(context.WithoutCancel(r.Context()), b.disk, newDisk())
		if err != nil {
			return err
		}
		made = snapshot{
			ID: rand.Text(), Box: b.ID, Name: c.Name, Created: time.Now().Unix(), Guest: saved.Size, Container: saved.Size, Size: 2 * saved.Size, disk: saved.Ref,
		}
		b.snapshots[c.Name] = &made
		return nil
	})
	return http.StatusCreated, made, err
}

func (s *Server) listSnapshots(_ *http.Request, b *box) (int, any, error) {
	b.op.Lock()
	defer b.op.Unlock()
	all := []snapshot{}
	for _, sn := range b.snapshots {
		all = append(all, *sn)
	}
	return http.StatusOK, map[string]any{"snapshots": all}, nil
}

func (s *Server) getSnapshot(r *http.Request, b *box) (int, any, error) {
	b.op.Lock()
	defer b.op.Unlock()
	if sn := b.snapshots[r.PathValue("name")]; sn != nil {
		return http.StatusOK, *sn, nil
	}
	return 0, nil, notFound("snapshot", r.PathValue("name"))
}

func (s *Server) deleteSnapshot(r *http.Request, b *box) (int, any, error) {
	b.op.Lock()
	defer b.op.Unlock()
	sn := b.snapshots[r.PathValue("name")]
	if sn == nil {
		return 0, nil, notFound("snapshot", r.PathValue("name"))
	}
	delete(b.snapshots, sn.Name)
	return http.StatusNoContent, nil, s.drop(context.WithoutCancel(r.Context()), &sn.disk)
}

func (s *Server) restoreSnapshot(r *http.Request, b *box) (int, any, error) {
	ctx := context.WithoutCancel(r.Context())
	return http.StatusNoContent, nil, s.stopped(b, func() error {
		sn := b.snapshots[r.PathValue("name")]
		if sn == nil {
			return notFound("snapshot", r.PathValue("name"))
		}
		saved, err := s.keeper().CopySnapshot(ctx, sn.disk, newDisk())
		if err != nil {
			return err
		}
		was := b.disk
		b.disk = saved.Ref
		return s.drop(ctx, &was)
	})
}

// clone makes a box of the disk of another one, with the same settings. It is
// stopped, too.
func (s *Server) clone(r *http.Request, b *box) (int, any, error) {
	var c struct {
		Name *string `json:"name"`
	}
	if err := read(r, &c); err != nil {
		return 0, nil, err
	}
	var made *box
	err := s.stopped(b, func() error {
		saved, err := s.keeper().CopySnapshot(context.WithoutCancel(r.Context()), b.disk, newDisk())
		if err != nil {
			return err
		}
		asked := b.Asked
		asked.Name = c.Name
		made, err = s.addStopped(b.tenant, asked, saved.Ref)
		return err
	})
	if err != nil {
		return 0, nil, err
	}
	return http.StatusCreated, s.shown(made), nil
}

func (s *Server) addStopped(tenant string, c Creation, disk driver.SnapshotRef) (*box, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := s.add(tenant, c)
	if err != nil {
		_ = s.drop(context.Background(), &disk)
		return nil, err
	}
	b.Status, b.disk = Stopped, disk
	return b, nil
}

// export answers the disk of a box that is stopped.
func (s *Server) export(w http.ResponseWriter, r *http.Request) {
	var archive bytes.Buffer
	_, _, err := s.withBox(func(r *http.Request, b *box) (int, any, error) {
		return 0, nil, s.stopped(b, func() error { return s.keeper().ExportSnapshot(r.Context(), b.disk, &archive) })
	})(r)
	if err != nil {
		refuse(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	_, _ = w.Write(archive.Bytes())
}

// load makes a box of what export answered.
func (s *Server) load(r *http.Request) (int, any, error) {
	var c Creation
	if name := r.URL.Query().Get("name"); name != "" {
		c.Name = &name
	}
	saved, err := s.keeper().ImportSnapshot(r.Context(), newDisk(), r.Body)
	if err != nil {
		return 0, nil, err
	}
	b, err := s.addStopped(tenantOf(r), c, saved.Ref)
	if err != nil {
		return 0, nil, err
	}
	return http.StatusCreated, s.shown(b), nil
}

// tunnel returns an address for a port of a box: for HTTP as it is, and for
// anything else with CONNECT.
func (s *Server) tunnel(r *http.Request, b *box) (int, any, error) {
	port, err := strconv.ParseUint(r.URL.Query().Get("port"), 10, 16)
	if err != nil || port == 0 {
		return 0, nil, invalid("port is invalid")
	}
	in, _, err := s.running(b)
	if err != nil {
		return 0, nil, err
	}
	if !s.open(b) {
		return 0, nil, conflict("inbound traffic of the box is disabled")
	}
	dialer, ok := driver.As[driver.Dialer](in)
	if !ok {
		return 0, nil, fail(http.StatusNotImplemented, "unsupported", "no ports")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := b.tunnels[int(port)]
	if t == nil {
		t = httptest.NewServer(&tunnel{func(ctx context.Context) (net.Conn, error) { return dialer.Dial(ctx, uint16(port)) }, &s.connected})
		b.tunnels[int(port)] = t
	}
	return http.StatusOK, map[string]string{"uri": t.URL}, nil
}

// open reports whether connections to a box are accepted.
func (s *Server) open(b *box) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return b.Asked.normal().Inbound.Mode == "enabled"
}

func (s *Server) untunnel(r *http.Request, b *box) (int, any, error) {
	port, _ := strconv.Atoi(r.URL.Query().Get("port"))
	s.mu.Lock()
	t := b.tunnels[port]
	delete(b.tunnels, port)
	s.mu.Unlock()
	if t != nil {
		t.Close()
	}
	return http.StatusNoContent, nil, nil
}

type tunnel struct {
	dial      func(context.Context) (net.Conn, error)
	connected *atomic.Int64
}

// Connected returns how many connections went through tunnels, but for HTTP.
func (s *Server) Connected() int { return int(s.connected.Load()) }

func (t *tunnel) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect {
		transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return t.dial(ctx) }}
		(&httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", "box"
		}, ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusBadGateway)
		}}).ServeHTTP(w, r)
		return
	}
	inner, err := t.dial(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer inner.Close()
	outer, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer outer.Close()
	if _, err := io.WriteString(outer, "HTTP/1.1 200 OK\r\n\r\n"); err != nil {
		return
	}
	t.connected.Add(1)
	done := make(chan struct{}, 2)
	pass := func(to, from net.Conn) {
		_, _ = io.Copy(to, from)
		if half, ok := to.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
		done <- struct{}{}
	}
	go pass(inner, outer)
	go pass(outer, inner)
	<-done
	<-done
}

// volume is a managed volume.
type volume struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	State   string    `json:"state"`
	Created time.Time `json:"created_at"`
	Updated time.Time `json:"updated_at"`

	tenant, dir string
}

// volume finds a volume by its id or its name. The mutex is held.
func (s *Server) volume(id, tenant string) *volume {
	for _, v := range s.volumes {
		if v.tenant == tenant && (v.ID == id || v.Name == id) {
			return v
		}
	}
	return nil
}

func (s *Server) createVolume(r *http.Request) (int, any, error) {
	var c struct {
		Name string `json:"name"`
	}
	if err := read(r, &c); err != nil && r.ContentLength != 0 {
		return 0, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	id := "vol_" + rand.Text()
	v := &volume{ID: id, Name: cmp.Or(c.Name, id), State: "ready", Created: time.Now().UTC(), Updated: time.Now().UTC(), tenant: tenantOf(r), dir: filepath.Join(s.dir, id)}
	if s.volume(v.Name, v.tenant) != nil {
		return 0, nil, fail(http.StatusConflict, "already_exists", "volume already exists: %s", v.Name)
	}
	if err := os.MkdirAll(v.dir, 0o755); err != nil {
		return 0, nil, err
	}
	s.volumes[id] = v
	return http.StatusCreated, v, nil
}

func (s *Server) listVolumes(r *http.Request) (int, any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []map[string]any{}
	for _, v := range slices.SortedFunc(maps.Values(s.volumes), func(a, b *volume) int { return strings.Compare(a.ID, b.ID) }) {
		if v.tenant == tenantOf(r) {
			all = append(all, map[string]any{"id": v.ID, "name": v.Name, "state": v.State, "created_at": v.Created})
		}
	}
	return http.StatusOK, map[string]any{"volumes": all}, nil
}

func (s *Server) withVolume(f func(*http.Request, *volume) (int, any, error)) call {
	return func(r *http.Request) (int, any, error) {
		s.mu.Lock()
		v := s.volume(r.PathValue("volume"), tenantOf(r))
		s.mu.Unlock()
		if v == nil {
			return 0, nil, notFound("volume", r.PathValue("volume"))
		}
		return f(r, v)
	}
}

func (s *Server) deleteVolume(_ *http.Request, v *volume) (int, any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.volumes, v.ID)
	return http.StatusNoContent, nil, os.RemoveAll(v.dir)
}
