package code

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/bluekeyes/go-gitdiff/gitdiff"

	"github.com/atoll-run/atoll/sandbox/coding"
)

// parseUnified reads a unified diff.
func parseUnified(text string) ([]edit, error) {
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	files, _, err := gitdiff.Parse(strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	edits := make([]edit, len(files))
	for i, f := range files {
		if edits[i], err = unified(f, text); err != nil {
			return nil, err
		}
	}
	return edits, nil
}

func unified(f *gitdiff.File, text string) (e edit, err error) {
	before, after := f.OldName, f.NewName
	if f.OldMode == 0 && f.NewMode == 0 && !f.IsRename && !f.IsCopy {
		before, after = unprefixed(f, text)
	}
	e = edit{status: coding.GitModified, path: after}
	switch {
	case f.IsNew:
		e.status = coding.GitAdded
	case f.IsDelete:
		e.status, e.path = coding.GitDeleted, before
	case f.IsRename:
		e.status, e.from = coding.GitRenamed, before
	case f.IsCopy:
		e.status, e.from = coding.GitCopied, before
	}
	if kind := f.NewMode &^ 0o7777; kind != 0 && kind != 0o100000 {
		return e, fmt.Errorf("%s is a link or a submodule, which a patch cannot change", e.path)
	}
	if e.mode = uint32(f.NewMode & 0o777); e.status == coding.GitModified && f.OldMode == f.NewMode {
		e.mode = 0
	}
	if f.IsBinary && f.BinaryFragment == nil {
		return e, fmt.Errorf("%s is binary, and the patch does not have its content", e.path)
	}
	e.apply = func(old []byte) ([]byte, int, int, error) {
		if f.BinaryFragment != nil {
			var out bytes.Buffer
			err := gitdiff.Apply(&out, bytes.NewReader(old), f)
			return out.Bytes(), 0, 0, err
		}
		content, added, deleted, err := applyFragments(old, f.TextFragments)
		if err == nil && e.status == coding.GitDeleted && len(content) > 0 {
			err = errors.New("has more content than the patch removes")
		}
		return content, added, deleted, err
	}
	return e, nil
}

// unprefixed returns the names of a file without the prefixes of git, which diffs
// without a header of git may have too.
func unprefixed(f *gitdiff.File, text string) (before, after string) {
	a, old := strings.CutPrefix(f.OldName, "a/")
	b, now := strings.CutPrefix(f.NewName, "b/")
	switch {
	case f.IsDelete && old:
		return a, f.NewName
	case f.IsNew && now, now && strings.Contains("\n"+text, "\n--- a/"+b):
		return b, b
	}
	return f.OldName, f.NewName
}

// lines are the lines of a file, without their ends.
type lines struct {
	all   []string
	ended bool // the last line has an end
	crlf  bool
}

func split(content []byte) *lines {
	if len(content) == 0 {
		return &lines{ended: true}
	}
	text, ended := strings.CutSuffix(string(content), "\n")
	l := &lines{all: strings.Split(text, "\n"), ended: ended}
	l.crlf = strings.HasSuffix(l.all[0], "\r")
	return l
}

func (l *lines) join() []byte {
	if len(l.all) == 0 {
		return nil
	}
	text := strings.Join(l.all, "\n")
	if l.ended {
		text += "\n"
	}
	return []byte(text)
}

// change is one line of a hunk.
type change struct {
	op   byte // ' ', '+' or '-'
	text string
}

// sameness are the ways in which lines can be compared, the strictest first.
var sameness = []func(string) string{
	func(s string) string { return s },
	func(s string) string { return strings.TrimRight(s, " \t\r") },
	strings.TrimSpace,
}

// fits reports whether the lines from at on are the wanted ones.
func (l *lines) fits(want []string, at int, same func(string) string) bool {
	if at < 0 || at+len(want) > len(l.all) {
		return false
	}
	for i, line := range want {
		if same(l.all[at+i]) != same(line) {
			return false
		}
	}
	return true
}

// near returns the place of the wanted lines that is the nearest to at, and not
// before from; or -1.
func (l *lines) near(want []string, at, from int, ways []func(string) string) int {
	for _, same := range ways {
		for d := 0; d <= len(l.all); d++ {
			switch {
			case at+d >= from && l.fits(want, at+d, same):
				return at + d
			case at-d >= from && l.fits(want, at-d, same):
				return at - d
			}
		}
	}
	return -1
}

// replace carries out a hunk at a place, and returns the place after it. Lines
// of the context stay as they are.
func (l *lines) replace(at int, hunk []change) (next, added, deleted int) {
	var now []string
	old := at
	for _, c := range hunk {
		switch c.op {
		case '+':
			if l.crlf && !strings.HasSuffix(c.text, "\r") {
				c.text += "\r"
			}
			now = append(now, c.text)
			added++
		case '-':
			old++
			deleted++
		default:
			now = append(now, l.all[old])
			old++
		}
	}
	l.all = append(append(append([]string{}, l.all[:at]...), now...), l.all[old:]...)
	return at + len(now), added, deleted
}

func wanted(hunk []change) (want []string) {
	for _, c := range hunk {
		if c.op != '+' {
			want = append(want, c.text)
		}
	}
	return want
}

// applyFragments applies the hunks of a unified diff. They may be at other lines
// than the diff says.
func applyFragments(old []byte, fragments []*gitdiff.TextFragment) (content []byte, added, deleted int, err error) {
	l := split(old)
	shift, from := 0, 0
	for n, f := range fragments {
		hunk := make([]change, len(f.Lines))
		oldEnds, newEnds := true, true
		for i, line := range f.Lines {
			text, ended := strings.CutSuffix(line.Line, "\n")
			hunk[i] = change{text: text}
			switch line.Op {
			case gitdiff.OpAdd:
				hunk[i].op = '+'
				newEnds = ended
			case gitdiff.OpDelete:
				hunk[i].op = '-'
				oldEnds = ended
			default:
				hunk[i].op = ' '
				oldEnds, newEnds = ended, ended
			}
		}
		want := wanted(hunk)
		at := int(f.OldPosition) - 1 + shift
		if f.OldLines == 0 {
			at++ // after that line
		}
		at = min(max(at, 0), len(l.all))
		place := l.near(want, at, from, sameness[:2])
		if !oldEnds && place >= 0 && place+len(want) != len(l.all) {
			place = -1
		}
		if len(want) == 0 {
			place = min(at, len(l.all))
		}
		if place < 0 {
			return nil, 0, 0, fmt.Errorf("hunk %d (%s) does not fit", n+1, f.Header())
		}
		atEnd := place+len(want) == len(l.all)
		next, a, d := l.replace(place, hunk)
		if atEnd {
			l.ended = newEnds
		}
		shift, from = shift+(place-at)+a-d, next
		added, deleted = added+a, deleted+d
	}
	return l.join(), added, deleted, nil
}

// The lines of the format of the apply_patch tool.
const (
	beginPatch = "*** Begin Patch"
	endPatch   = "*** End Patch"
	addFile    = "*** Add File: "
	deleteFile = "*** Delete File: "
	updateFile = "*** Update File: "
	moveTo     = "*** Move to: "
	endOfFile  = "*** End of File"
)

// section is a part of an update: lines that change below some anchors.
type section struct {
	anchors []string
	hunk    []change
	atEnd   bool
}

// parseEnvelope reads a patch in the format of the apply_patch tool.
func parseEnvelope(text string) (edits []edit, err error) {
	all := strings.Split(strings.ReplaceAll(strings.TrimSpace(text), "\r\n", "\n"), "\n")
	if len(all) < 2 || all[0] != beginPatch || strings.TrimSpace(all[len(all)-1]) != endPatch {
		return nil, fmt.Errorf("it does not begin with %q and end with %q", beginPatch, endPatch)
	}
	rest := all[1 : len(all)-1]
	take := func() (block []string) {
		for len(rest) > 0 && !strings.HasPrefix(rest[0], addFile) && !strings.HasPrefix(rest[0], deleteFile) && !strings.HasPrefix(rest[0], updateFile) {
			block, rest = append(block, rest[0]), rest[1:]
		}
		return block
	}
	for len(rest) > 0 {
		head := rest[0]
		rest = rest[1:]
		block := take()
		var e edit
		if name, ok := strings.CutPrefix(head, addFile); ok {
			e, err = addition(name, block)
		} else if name, ok := strings.CutPrefix(head, deleteFile); ok {
			e = edit{status: coding.GitDeleted, path: name, apply: func(old []byte) ([]byte, int, int, error) { return nil, 0, len(split(old).all), nil }}
		} else if name, ok := strings.CutPrefix(head, updateFile); ok {
			e, err = update(name, block)
		} else if strings.TrimSpace(head) != "" {
			err = fmt.Errorf("%.80q is in no file", head)
		} else {
			continue
		}
		if err != nil {
			return nil, err
		}
		edits = append(edits, e)
	}
	return edits, nil
}

func addition(name string, block []string) (edit, error) {
	var content strings.Builder
	for _, line := range block {
		text, ok := strings.CutPrefix(line, "+")
		if !ok {
			return edit{}, fmt.Errorf("%s: %.80q does not begin with a plus sign", name, line)
		}
		content.WriteString(text + "\n")
	}
	return edit{status: coding.GitAdded, path: name, apply: func([]byte) ([]byte, int, int, error) {
		return []byte(content.String()), len(block), 0, nil
	}}, nil
}

func update(name string, block []string) (edit, error) {
	e := edit{status: coding.GitModified, path: name}
	if len(block) > 0 {
		if to, ok := strings.CutPrefix(block[0], moveTo); ok {
			e.status, e.from, e.path, block = coding.GitRenamed, name, to, block[1:]
		}
	}
	var sections []section
	begun := false // the last section has lines
	for _, line := range block {
		switch {
		case line == "@@" || strings.HasPrefix(line, "@@ "):
			if len(sections) == 0 || begun {
				sections, begun = append(sections, section{}), false
			}
			if anchor := strings.TrimSpace(line[2:]); anchor != "" {
				s := &sections[len(sections)-1]
				s.anchors = append(s.anchors, anchor)
			}
			continue
		case line == endOfFile:
			if !begun {
				return e, fmt.Errorf("%s: %q is in no hunk", name, line)
			}
			sections[len(sections)-1].atEnd = true
			continue
		case line == "":
			line = " "
		case !strings.ContainsRune(" +-", rune(line[0])):
			return e, fmt.Errorf("%s: %.80q begins with neither a space, a plus nor a minus sign", name, line)
		}
		if len(sections) == 0 {
			sections = append(sections, section{})
		}
		s := &sections[len(sections)-1]
		s.hunk, begun = append(s.hunk, change{line[0], line[1:]}), true
	}
	e.apply = func(old []byte) ([]byte, int, int, error) { return applySections(old, sections) }
	return e, nil
}

// applySections applies the hunks of an update, each below the one before.
func applySections(old []byte, sections []section) (content []byte, added, deleted int, err error) {
	l := split(old)
	from := 0
	for n, s := range sections {
		anchored := from
		for _, anchor := range s.anchors {
			at := l.first([]string{anchor}, anchored)
			if at < 0 {
				return nil, 0, 0, fmt.Errorf("hunk %d: there is no line %q", n+1, anchor)
			}
			anchored = at + 1
		}
		want := wanted(s.hunk)
		place := l.first(want, anchored)
		if last := len(l.all) - len(want); s.atEnd && last >= anchored && l.near(want, last, last, sameness) == last {
			place = last
		}
		if len(want) == 0 {
			place = anchored
			if len(s.anchors) == 0 {
				place = len(l.all)
			}
		}
		if place < 0 {
			return nil, 0, 0, fmt.Errorf("hunk %d does not fit: there are no lines %.200q", n+1, strings.Join(want, "\n"))
		}
		next, a, d := l.replace(place, s.hunk)
		from, added, deleted = next, added+a, deleted+d
	}
	return l.join(), added, deleted, nil
}

// first returns the first place of the wanted lines from a place on, or -1. A
// strict comparison anywhere wins over a lenient one.
func (l *lines) first(want []string, from int) int {
	for _, same := range sameness {
		for at := from; at+len(want) <= len(l.all); at++ {
			if l.fits(want, at, same) {
				return at
			}
		}
	}
	return -1
}
