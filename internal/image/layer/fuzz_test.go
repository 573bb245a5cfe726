package layer

import (
	"archive/tar"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/sandbox"
)

// FuzzRaw uses arbitrary bytes as two layers. The result is a tree that can be
// written and read, or a classified error.
func FuzzRaw(f *testing.F) {
	f.Add(tarOf(f, file("a/b", "x"), symlink("l", "a"), hardlink("l/h", "a/b")), tarOf(f, file("a/.wh.b", ""), file("l/.wh..wh..opq", "")))
	f.Add([]byte("junk"), []byte{})
	limits := Limits{Entries: 1000, FileSize: 1 << 20, ImageSize: 4 << 20}
	f.Fuzz(func(t *testing.T, lower, upper []byte) {
		img, err := stack(t, limits, Options{}, lower, upper)
		if err != nil {
			if code := sandbox.CodeOf(err); code != sandbox.CodeInvalid && code != sandbox.CodeExhausted {
				t.Fatalf("error without a proper code: %v", err)
			}
			return
		}
		for _, line := range list(t, img) {
			if strings.HasPrefix(line, "/") || strings.Contains("/"+line, "/../") {
				t.Fatalf("the image holds %q", line)
			}
		}
	})
}

// FuzzAgainstModel makes layers of a few names from the fuzzer's bytes and
// compares the image with what a naive model on paths says.
func FuzzAgainstModel(f *testing.F) {
	for _, seed := range []string{"", "abcdefghij", "\x00\x01\x02\x03\x10\x11\x12\x13", "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz", strings.Repeat("\x05\x81\x33\xe7", 20)} {
		f.Add([]byte(seed))
	}
	f.Fuzz(checkAgainstModel)
}

// TestAgainstModel does the same with some random bytes, on every run.
func TestAgainstModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range 200 {
		data := make([]byte, r.IntN(120))
		for k := range data {
			data[k] = byte(r.Uint32())
		}
		if !t.Run(fmt.Sprintf("%d-%d", seed, i), func(t *testing.T) { checkAgainstModel(t, data) }) {
			return
		}
	}
}

func checkAgainstModel(t *testing.T, data []byte) {
	layers := layersFrom(data)
	var tars [][]byte
	m := model{}
	var modelErr error
	for _, l := range layers {
		tars = append(tars, tarOf(t, l...))
		if modelErr == nil {
			modelErr = m.apply(l)
		}
	}
	img, err := stack(t, Limits{}, Options{}, tars...)
	if (err != nil) != (modelErr != nil) {
		t.Fatalf("layers %v:\nerror %v\nmodel %v", layers, err, modelErr)
	}
	if err != nil {
		return
	}
	if got, want := list(t, img), m.list(); !slices.Equal(got, want) {
		t.Fatalf("layers %v:\ngot   %q\nmodel %q", layers, got, want)
	}
}

// layersFrom makes members of two bytes each: the kind, and the path.
func layersFrom(data []byte) [][]member {
	layers := [][]member{nil}
	for i := 0; i+1 < len(data) && i < 120; i += 2 {
		parts := strings.Split([]string{"a", "b", "a/a", "a/b", "b/a", "b/b", "a/a/a", "a/b/a"}[data[i+1]%8], "/")
		name := path.Join(parts...)
		hidden := path.Join(path.Dir(name), ".wh."+path.Base(name))
		var m member
		switch data[i] % 8 {
		case 0, 1:
			m = file(name, fmt.Sprint(i))
		case 2:
			m = dir(name)
		case 3:
			m = hardlink(name, []string{"a", "b", "a/a", "b/b"}[data[i+1]/8%4])
		case 4:
			m = file(hidden, "")
		case 5:
			m = file(name+"/.wh..wh..opq", "")
		case 6:
			layers = append(layers, nil)
			continue
		case 7:
			m = member{name: name, typ: tar.TypeFifo}
		}
		layers[len(layers)-1] = append(layers[len(layers)-1], m)
	}
	return layers
}

// model is a file system as a map of paths. A hard link is the same pointer.
type model map[string]*modelFile

type modelFile struct {
	typ      byte
	data     string
	implicit bool // a directory that only stands above others
	bare     bool // … whiteouts
	link     string
}

func (m model) removeBelow(p string) {
	for k := range m {
		if strings.HasPrefix(k, p+"/") {
			delete(m, k)
		}
	}
}

// modelLayer is one layer: its own files, and what it hides.
type modelLayer struct {
	files  model
	opaque map[string]bool
	gone   map[string]bool

	waiting []*modelFile // hard links with a missing target
}

// forget removes what a replaced name had below it.
func (l *modelLayer) forget(p string) {
	l.files.removeBelow(p)
	below := func(k string, _ bool) bool { return strings.HasPrefix(k, p+"/") }
	maps.DeleteFunc(l.opaque, below)
	maps.DeleteFunc(l.gone, below)
	delete(l.opaque, p)
}

// parents makes the directories above p.
func (l *modelLayer) parents(p string, real bool) error {
	for i := range p {
		if p[i] != '/' {
			continue
		}
		d := l.files[p[:i]]
		if d == nil {
			d = &modelFile{typ: tar.TypeDir, implicit: true, bare: true}
			l.files[p[:i]] = d
		}
		if d.typ != tar.TypeDir {
			return fmt.Errorf("%s is below a file", p)
		}
		d.bare = d.bare && !real
	}
	return nil
}

// apply puts a layer over the model.
func (m model) apply(members []member) error {
	l := &modelLayer{files: model{}, opaque: map[string]bool{}, gone: map[string]bool{}}
	for _, mb := range members {
		if err := l.add(m, mb); err != nil {
			return err
		}
	}
	if err := l.resolve(); err != nil {
		return err
	}
	m.hide(l)
	m.put(l)
	return nil
}

func (l *modelLayer) add(lower model, mb member) error {
	base := path.Base(mb.name)
	if strings.HasPrefix(base, ".wh.") {
		if err := l.parents(mb.name, false); err != nil {
			return err
		}
		if base == ".wh..wh..opq" {
			l.opaque[path.Dir(mb.name)] = true
		} else {
			l.gone[path.Join(path.Dir(mb.name), base[4:])] = true
		}
		return nil
	}
	n := &modelFile{typ: cmp.Or(mb.typ, tar.TypeReg), data: mb.data}
	if mb.typ == tar.TypeLink {
		target := l.files[mb.link]
		if target == nil {
			target = lower[mb.link]
		}
		switch {
		case target == nil || target.typ == tar.TypeLink:
			n.link = mb.link // later
		case target.typ == tar.TypeDir:
			return fmt.Errorf("hard link to directory %s", mb.link)
		default:
			n = target
		}
	}
	if err := l.parents(mb.name, true); err != nil {
		return err
	}
	old := l.files[mb.name]
	if old != nil && old.typ == tar.TypeDir && n.typ == tar.TypeDir {
		old.implicit, old.bare = false, false
		return nil
	}
	l.forget(mb.name)
	if old != nil && n.typ == tar.TypeDir {
		l.opaque[mb.name] = true
	}
	l.files[mb.name] = n
	if n.typ == tar.TypeLink {
		l.waiting = append(l.waiting, n)
	}
	return nil
}

// resolve finds the targets that came after their links.
func (l *modelLayer) resolve() error {
	for _, n := range l.waiting {
		target := n
		for hops := 0; target.typ == tar.TypeLink; hops++ {
			if target = l.files[target.link]; target == nil || hops > 1000 {
				return errors.New("hard link to nothing")
			}
		}
		if target.typ == tar.TypeDir {
			return errors.New("hard link to a later directory")
		}
		for k, v := range l.files {
			if v == n {
				l.files[k] = target
			}
		}
		*n = *target // for links that wait for this one and were replaced
	}
	return nil
}

// hide removes what the layer hides of the lower ones.
func (m model) hide(l *modelLayer) {
	for d := range l.opaque {
		m.removeBelow(d)
	}
	for p := range l.gone {
		m.removeBelow(p)
		delete(m, p)
	}
}

// put adds the layer's own files, directories before what is in them.
func (m model) put(l *modelLayer) {
	for _, p := range slices.Sorted(maps.Keys(l.files)) {
		n := l.files[p]
		old := m[p]
		switch {
		case n.typ != tar.TypeDir:
			m.removeBelow(p)
		case old != nil && old.typ == tar.TypeDir, n.bare:
			continue
		}
		m[p] = n
	}
}

// list is as the function of that name.
func (m model) list() []string {
	names := map[*modelFile]int{}
	for _, n := range m {
		names[n]++
	}
	first := map[*modelFile]string{}
	var lines []string
	for _, p := range slices.Sorted(maps.Keys(m)) {
		n := m[p]
		line := p
		switch n.typ {
		case tar.TypeDir:
			line += "/"
		case tar.TypeFifo:
			line += "|"
		default:
			line += "=" + n.data
		}
		if names[n] > 1 && n.typ != tar.TypeDir {
			if f, ok := first[n]; ok {
				line += " #" + f
			} else {
				first[n] = p
			}
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return lines
}
