package snapshots

import "testing"

func TestPinned(t *testing.T) {
	const digest = "sha256:aa"
	for name, want := range map[string]string{
		"debian:12": "debian@sha256:aa", "debian": "debian@sha256:aa", "localhost:5000/app": "localhost:5000/app@sha256:aa",
		"localhost:5000/app:1": "localhost:5000/app@sha256:aa", "ghcr.io/a/b@sha256:aa": "ghcr.io/a/b@sha256:aa", "ghcr.io/a/b:1@sha256:aa": "ghcr.io/a/b@sha256:aa",
		"dir:/x": digest, "oci:/x:tag": digest, "template:t:1": digest, "sha256:aa": digest, "": digest,
	} {
		if got := pinned(name, digest); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
	if got := pinned("debian:12", "host"); got != "host" {
		t.Errorf("what is no digest: %q", got)
	}
}
