//go:build docker

package docker_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/docker"
	"github.com/atoll-run/atoll/provider/internal/hostedtest"
	"github.com/atoll-run/atoll/sandbox"
)

// images lists the daemon's snapshots.
func images(t *testing.T) (ids []string) {
	t.Helper()
	res, err := api.ImageList(t.Context(), client.ImageListOptions{Filters: client.Filters{}.Add("label", "run.atoll.snapshot")})
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range res.Items {
		if i.Labels["run.atoll.snapshot"] != "" {
			ids = append(ids, i.ID)
		}
	}
	return ids
}

func says(t *testing.T, sb *atoll.Sandbox, script string) string {
	t.Helper()
	res, err := sb.Run(t.Context(), sandbox.Command{Shell: script}, atoll.RunOptions{})
	if err != nil || res.Exit.Code != 0 {
		t.Fatalf("%s: %+v, %v", script, res, err)
	}
	return strings.TrimSpace(string(res.Stdout))
}

// A sandbox that is stopped keeps its files, environment and labels, each time,
// and leaves no image when it is removed. It names no image.
func TestStopped(t *testing.T) {
	t.Setenv("ATOLL_BIN", bin)
	c := hostedtest.Daemon(t, docker.Name, true, opened)
	before := images(t)
	sb, err := c.Create(t.Context(), sandbox.Spec{
		Name: "kept", Env: map[string]string{"GREETING": "hello"}, Labels: map[string]string{"team": "red", "empty": ""},
	}, atoll.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := ""
	for range 3 {
		want = strings.TrimSpace(want + "\nmore")
		if got := says(t, sb, "echo more >>/root/note; cat /root/note; test $GREETING = hello; id -u; pwd"); got != want+"\n0\n/" {
			t.Errorf("it says %q", got)
		}
		if _, err := sb.Stop(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		if left := containers(t, string(sb.ID())); len(left) != 0 {
			t.Fatalf("a stopped sandbox has a container: %+v", left)
		}
		if _, err := sb.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if sb, err = c.Get(t.Context(), "kept"); err != nil || sb.Info().Labels["team"] != "red" {
		t.Errorf("%+v, %v", sb.Info(), err)
	}
	if err := sb.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := images(t); !slices.Equal(after, before) {
		t.Errorf("the images are %v, and were %v", after, before)
	}
}

// A snapshot is not an image for other sandboxes, whatever name it is given. A
// sandbox made from it gets none of the settings of the first one.
func TestSnapshotsAreNoImages(t *testing.T) {
	p := open(t, options(t.TempDir()))
	in := create(t, p, sandbox.Spec{ID: "first-1", Labels: map[string]string{"team": "red"}, Lifetime: sandbox.Lifetime{Timeout: 3600e9}})
	shell(t, in, "echo private >/root/note")
	s, err := in.(driver.Snapshotter).Snapshot(t.Context(), driver.SnapshotOptions{ID: "taken"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.RemoveSnapshot(t.Context(), s.Ref); err != nil {
			t.Error(err)
		}
	}()
	res, err := api.ImageInspect(t.Context(), s.Ref.Data)
	if err != nil {
		t.Fatal(err)
	}
	short := strings.TrimPrefix(res.ID, "sha256:")[:12]
	for _, name := range []string{s.Ref.Data, "docker.io/library/" + s.Ref.Data, res.ID, short} {
		_, err := p.Create(t.Context(), &sandbox.Spec{ID: "thief-1", Image: name})
		if sandbox.CodeOf(err) != sandbox.CodeDenied {
			t.Errorf("made from %s: %v, want denied", name, err)
		}
	}
	twin, _, err := p.Restore(t.Context(), &sandbox.Spec{ID: "twin-1", Labels: map[string]string{"new": "yes"}}, s.Ref)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := twin.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	for f, err := range p.List(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if f.ID == "twin-1" && (len(f.Labels) != 1 || f.Labels["new"] != "yes") {
			t.Errorf("the copy has the labels %v", f.Labels)
		}
	}
	if got := containers(t, "twin-1")[0].Labels["run.atoll.life"]; got != "0" {
		t.Errorf("the copy has the lifetime %q of its source", got)
	}
}

// An image with a volume has files that a snapshot would lack.
func TestVolumesAreNotLost(t *testing.T) {
	made, err := api.ContainerCreate(t.Context(), client.ContainerCreateOptions{Image: image, Config: &container.Config{Cmd: []string{"true"}}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = api.ContainerCommit(t.Context(), made.ID, client.ContainerCommitOptions{Reference: "atoll-test-volume", Changes: []string{"VOLUME /data"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := api.ContainerRemove(t.Context(), made.ID, client.ContainerRemoveOptions{}); err != nil {
		t.Fatal(err)
	}
	in := create(t, open(t, options(t.TempDir())), sandbox.Spec{ID: "volume-1", Image: "atoll-test-volume"})
	_, err = in.(driver.Snapshotter).Snapshot(t.Context(), driver.SnapshotOptions{ID: "volume", Stop: true})
	if sandbox.CodeOf(err) != sandbox.CodeUnsupported || !strings.Contains(err.Error(), "/data") {
		t.Errorf("a snapshot without the volume: %v", err)
	}
	if got := shell(t, in, "echo here"); got != "here" {
		t.Errorf("the sandbox was stopped: %q", got)
	}
}

// A sandbox that names no image gets the default one.
func TestDefaultImage(t *testing.T) {
	if _, err := api.ImageTag(t.Context(), client.ImageTagOptions{Source: image, Target: docker.DefaultImage}); err != nil {
		t.Fatal(err)
	}
	opts := options(t.TempDir())
	opts.Image = ""
	create(t, open(t, opts), sandbox.Spec{ID: "default-1"})
	if got := containers(t, "default-1")[0].Image; got != docker.DefaultImage {
		t.Errorf("it has the image %q", got)
	}
}
