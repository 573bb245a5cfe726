package image

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// namesOf returns the names of a store for sharing, as NAME STATE.
func namesOf(t *testing.T, s *Store) (all []string) {
	t.Helper()
	names, err := s.Names("")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		text := n.Name
		for _, part := range []struct {
			is   bool
			what string
		}{{n.Digest == "", " removed"}, {n.Own, " own"}, {n.New, " new"}, {n.Agreed != "" && n.Agreed == n.Change, " agreed"}} {
			if part.is {
				text += part.what
			}
		}
		all = append(all, text)
	}
	slices.Sort(all)
	return all
}

// agreeNames does what a daemon does that shares all changes at once.
func agreeNames(t *testing.T, s *Store) {
	t.Helper()
	names, err := s.Names("")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		to := n
		if to.New, to.Agreed = false, n.Change; n.Digest == "" {
			to = NameState{Name: n.Name, Platform: n.Platform}
		}
		if done, err := s.SetName(t.Context(), n, to); err != nil || !done {
			t.Fatalf("agreeing about %+v: %v, %v", n, done, err)
		}
	}
}

// Which changes of names other stores get to know.
func TestNames(t *testing.T) {
	reg := newRegistry(t)
	ref := reg.push(t, "app:1", imageOf(t, "linux/amd64", tarOf(t, "a", "pulled")))
	for _, tt := range []struct {
		name string
		do   func(t *testing.T, s *Store, importAs func(name, content string) string)
		want []string
	}{
		{"an import", func(_ *testing.T, _ *Store, importAs func(string, string) string) { importAs("app:1", "one") }, []string{"app:1 own new"}},
		{"files, a pulled image and the host", func(t *testing.T, s *Store, _ func(string, string) string) {
			mustGet(t, s, "tar:"+writeFile(t, filepath.Join(t.TempDir(), "x.tar"), tarOf(t, "a", "x")), GetOptions{})
			mustGet(t, s, ref, GetOptions{})
		}, nil},
		{"a build", func(t *testing.T, s *Store, _ func(string, string) string) {
			from := mustGet(t, s, "tar:"+writeFile(t, filepath.Join(t.TempDir(), "x.tar"), tarOf(t, "a", "x")), GetOptions{})
			if _, err := s.Derive(t.Context(), "template/0a/1b", from, nil, Config{Env: []string{"A=1"}}); err != nil {
				t.Fatal(err)
			}
		}, nil},
		{"an import of a registry's image", func(t *testing.T, s *Store, _ func(string, string) string) {
			if _, err := s.Import(t.Context(), ref, "app:1", GetOptions{}); err != nil {
				t.Fatal(err)
			}
		}, []string{"app:1 new"}},
		{"a removal before the name was shared", func(t *testing.T, s *Store, importAs func(string, string) string) {
			importAs("app:1", "one")
			wantCode(t, s.Remove(t.Context(), "app:1"), "")
		}, nil},
		{"a removal", func(t *testing.T, s *Store, importAs func(string, string) string) {
			importAs("app:1", "one")
			agreeNames(t, s)
			wantCode(t, s.Remove(t.Context(), "app:1"), "")
		}, []string{"app:1 removed new"}},
		{"a removal of one of two names", func(t *testing.T, s *Store, importAs func(string, string) string) {
			importAs("app:1", "one")
			importAs("app:2", "one")
			agreeNames(t, s)
			wantCode(t, s.Remove(t.Context(), "app:1"), "")
		}, []string{"app:1 removed new", "app:2 own agreed"}},
		{"a removal by digest", func(t *testing.T, s *Store, importAs func(string, string) string) {
			digest := importAs("app:1", "one")
			importAs("app:2", "one")
			agreeNames(t, s)
			wantCode(t, s.Remove(t.Context(), digest), "")
		}, []string{"app:1 removed new", "app:2 removed new"}},
		{"a removal after another import", func(t *testing.T, s *Store, importAs func(string, string) string) {
			importAs("app:1", "one")
			agreeNames(t, s)
			importAs("app:1", "two")
			wantCode(t, s.Remove(t.Context(), "app:1"), "")
		}, []string{"app:1 removed new"}},
		{"an import after a removal", func(t *testing.T, s *Store, importAs func(string, string) string) {
			importAs("app:1", "one")
			agreeNames(t, s)
			wantCode(t, s.Remove(t.Context(), "app:1"), "")
			importAs("app:1", "two")
		}, []string{"app:1 own new"}},
		{"a removal that others know", func(t *testing.T, s *Store, importAs func(string, string) string) {
			importAs("app:1", "one")
			agreeNames(t, s)
			wantCode(t, s.Remove(t.Context(), "app:1"), "")
			agreeNames(t, s)
		}, nil},
		{"pruning", func(t *testing.T, s *Store, importAs func(string, string) string) {
			importAs("app:1", "one")
			agreeNames(t, s)
			if _, err := s.Prune(t.Context(), PruneOptions{All: true}); err != nil {
				t.Fatal(err)
			}
		}, nil},
		{"a loss of the image", func(t *testing.T, s *Store, importAs func(string, string) string) {
			importAs("app:1", "one")
			agreeNames(t, s)
			wantCode(t, os.RemoveAll(s.path("images")), "")
			wantCode(t, os.MkdirAll(s.path("images"), 0o700), "")
		}, nil},
		{"a pull of the name", func(t *testing.T, s *Store, _ func(string, string) string) {
			file := writeFile(t, filepath.Join(t.TempDir(), "x.tar"), tarOf(t, "a", "x"))
			if _, err := s.Import(t.Context(), "tar:"+file, ref, GetOptions{}); err != nil {
				t.Fatal(err)
			}
			agreeNames(t, s)
			mustGet(t, s, ref, GetOptions{Policy: PolicyAlways})
		}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := open(t, Options{})
			stamp := ""
			tt.do(t, s, func(name, content string) string {
				img, err := s.Import(t.Context(), "tar:"+writeFile(t, filepath.Join(t.TempDir(), "x.tar"), tarOf(t, "a", content)), name, GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if now := s.NamesStamp(); now == stamp {
					t.Error("the stamp is that before the import")
				} else {
					stamp = now
				}
				return img.Digest
			})
			if got := namesOf(t, s); !slices.Equal(got, tt.want) {
				t.Errorf("the names are %q, want %q", got, tt.want)
			}
			list, err := s.List(t.Context())
			wantCode(t, err, "")
			for _, img := range list {
				if slices.Contains(img.Names, "app:1") && slices.Contains(tt.want, "app:1 removed new") {
					t.Errorf("the list has a name that was removed: %q", img.Names)
				}
			}
		})
	}
}

// SetName changes only the state of a name that the caller knows, and only to an image
// that is here. The former image goes, unless it has another name.
func TestSetName(t *testing.T) {
	s := open(t, Options{})
	var digests []string
	for _, content := range []string{"one", "two"} {
		img, err := s.Import(t.Context(), "tar:"+writeFile(t, filepath.Join(t.TempDir(), "x.tar"), tarOf(t, "a", content)), "app:"+content, GetOptions{})
		wantCode(t, err, "")
		digests = append(digests, img.Digest)
	}
	names, err := s.Names("app:one")
	wantCode(t, err, "")
	now := names[0]
	set := func(old, to NameState, want bool) {
		t.Helper()
		if done, err := s.SetName(t.Context(), old, to); err != nil || done != want {
			t.Fatalf("it was done: %v, %v, want %v", done, err, want)
		}
	}
	old, to := now, now
	old.Change = "other"
	set(old, to, false)
	to.Digest = "sha256:" + hexSum([]byte("missing"))
	set(now, to, false)
	to = NameState{Name: now.Name, Platform: now.Platform, Digest: digests[1], Own: true, Change: "c", Agreed: "c"}
	set(now, to, true)
	if there, err := s.Has(digests[0]); there || err != nil {
		t.Errorf("the former image is there: %v, %v", there, err)
	}
	if names, err = s.Names("docker.io/library/app:one"); err != nil || len(names) != 1 || names[0] != to {
		t.Errorf("the name is %+v, %v, want %+v", names, err, to)
	}
	set(to, NameState{Name: now.Name, Platform: now.Platform}, true)
	if _, err := os.Stat(s.path("refs", refFile(now.Name, now.Platform))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a record is left: %v", err)
	}
	if there, err := s.Has(digests[1]); !there || err != nil {
		t.Errorf("the image with another name is not there: %v", err)
	}
	for _, ref := range []string{"host", "tar:/x", digests[0], "app@" + digests[0], "?"} {
		if names, err := s.Names(ref); len(names) != 0 || err != nil {
			t.Errorf("%s gives %+v, %v", ref, names, err)
		}
	}
}
