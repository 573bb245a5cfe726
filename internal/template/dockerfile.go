package template

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// ParseDockerfile parses the common subset of a Dockerfile: one FROM, then RUN,
// CMD and ENTRYPOINT in both forms, COPY and ADD of build files with --chown
// and --chmod, ENV, ARG, WORKDIR, USER, LABEL, EXPOSE and STOPSIGNAL; comments,
// continued lines, here-documents of RUN, and variables where Docker expands
// them. Anything else is CodeInvalid with the line number: nothing that would
// change the image is ignored.
//
// args replace the defaults of ARG. An argument without an ARG is CodeInvalid.
func ParseDockerfile(r io.Reader, args map[string]string) (*Description, error) {
	lines, err := readLines(r)
	if err != nil {
		return nil, err
	}
	p := &dockerfile{lines: lines, given: args, taken: map[string]bool{}, vars: map[string]string{}, escape: '\\'}
	if err := p.run(); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(args)) {
		if !p.taken[name] {
			return nil, invalid("args", "no ARG of the Dockerfile declares %q", clip(name))
		}
	}
	return &p.out, p.out.Validate()
}

func readLines(r io.Reader) ([]string, error) {
	in := bufio.NewScanner(io.LimitReader(r, MaxDescription+1))
	in.Buffer(nil, MaxDescription)
	var lines []string
	size := 0
	for in.Scan() {
		size += len(in.Bytes()) + 1
		if !utf8.Valid(in.Bytes()) {
			return nil, invalid("Dockerfile", "line %d is not UTF-8", len(lines)+1)
		}
		lines = append(lines, strings.TrimSuffix(in.Text(), "\r"))
	}
	if err := in.Err(); err != nil || size > MaxDescription {
		return nil, invalid("Dockerfile", "cannot be read, or has more than %d bytes", MaxDescription)
	}
	return lines, nil
}

// dockerfile is the state of the parser.
type dockerfile struct {
	lines  []string
	next   int // index of the next line
	escape byte
	given  map[string]string // replaces the defaults of ARG
	taken  map[string]bool   // names in given that have an ARG
	vars   map[string]string // values of variables
	args   []Var             // build arguments in the environment of RUN
	out    Description
}

func (p *dockerfile) run() error {
	p.directives()
	for p.next < len(p.lines) {
		start := p.next + 1
		text := p.instruction()
		if text == "" {
			continue
		}
		word, rest, _ := strings.Cut(text, " ")
		if i := strings.IndexFunc(text, unicode.IsSpace); i >= 0 {
			word, rest = text[:i], text[i:]
		}
		s := Step{Line: start, Text: clip(text)}
		if err := p.step(strings.ToUpper(word), strings.TrimSpace(rest), s); err != nil {
			return err
		}
	}
	if p.out.From == "" {
		return invalid("Dockerfile", "there is no FROM")
	}
	return nil
}

// directives parses the leading comments of the form "# name=value".
func (p *dockerfile) directives() {
	for _, line := range p.lines {
		body, ok := strings.CutPrefix(strings.TrimSpace(line), "#")
		name, value, assigned := strings.Cut(body, "=")
		if !ok || !assigned {
			return
		}
		if strings.EqualFold(strings.TrimSpace(name), "escape") && strings.TrimSpace(value) == "`" {
			p.escape = '`'
		}
	}
}

// instruction returns the next instruction, with continued lines joined and
// comments removed. Empty lines within an instruction are removed, too.
func (p *dockerfile) instruction() string {
	var b strings.Builder
	for p.next < len(p.lines) {
		line := p.lines[p.next]
		p.next++
		trimmed := strings.TrimSpace(line)
		if strings.HasPrefix(trimmed, "#") || trimmed == "" && b.Len() > 0 {
			continue
		}
		if b.Len() == 0 {
			line = strings.TrimLeftFunc(line, unicode.IsSpace)
		}
		body := strings.TrimRightFunc(line, unicode.IsSpace)
		if n := len(body); n > 0 && body[n-1] == p.escape {
			b.WriteString(body[:n-1])
			continue
		}
		b.WriteString(line)
		break
	}
	return strings.TrimSpace(b.String())
}

func (p *dockerfile) step(word, rest string, s Step) error {
	if p.out.From == "" && word != "FROM" && word != "ARG" {
		return s.invalid("%s before FROM", clip(word))
	}
	if rest == "" {
		return s.invalid("%s without arguments", clip(word))
	}
	switch word {
	case "FROM":
		return p.from(rest, s)
	case "ARG":
		return p.arg(rest, s)
	case "RUN":
		return p.runStep(rest, s)
	case "COPY", "ADD":
		return p.copyStep(word, rest, s)
	case "ENV", "LABEL":
		return p.varsStep(word, rest, s)
	case "CMD", "ENTRYPOINT":
		s.Op = Op(strings.ToLower(word))
		s.Args, s.Shell = command(rest)
	case "USER", "WORKDIR", "STOPSIGNAL":
		s.Op = Op(strings.ToLower(word))
		s.Args = []string{p.expand(rest)}
	case "EXPOSE":
		s.Op = OpExpose
		s.Args = strings.Fields(p.expand(rest))
	default:
		return s.invalid("%s is not supported", clip(word))
	}
	p.out.Steps = append(p.out.Steps, s)
	return nil
}

func (p *dockerfile) from(rest string, s Step) error {
	if p.out.From != "" {
		return s.invalid("multi-stage builds are not supported")
	}
	f := strings.Fields(p.expand(rest))
	if len(f) != 1 && (len(f) != 3 || !strings.EqualFold(f[1], "as")) || strings.HasPrefix(f[0], "--") {
		return s.invalid("FROM takes an image, and no flags")
	}
	p.out.From = f[0]
	// An ARG before FROM applies to FROM only.
	p.vars, p.args = map[string]string{}, nil
	return nil
}

func (p *dockerfile) arg(rest string, s Step) error {
	words, err := p.words(rest)
	if err != nil {
		return s.invalid("%v", err)
	}
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		if name == "" || strings.ContainsFunc(name, notName) {
			return s.invalid("%q is not the name of an argument", clip(name))
		}
		value = p.expand(value)
		if v, ok := p.given[name]; ok {
			value, p.taken[name] = v, true
		}
		if _, set := p.vars[name]; !set { // ENV has precedence
			p.vars[name] = value
			p.args = append(p.args, Var{name, value})
		}
	}
	return nil
}

func notName(r rune) bool {
	return r != '_' && !(r >= '0' && r <= '9') && !(r >= 'a' && r <= 'z') && !(r >= 'A' && r <= 'Z')
}

func (p *dockerfile) runStep(rest string, s Step) error {
	if strings.HasPrefix(rest, "--") {
		return s.invalid("flags of RUN are not supported: %q", clip(strings.Fields(rest)[0]))
	}
	s.Op, s.BuildEnv = OpRun, append([]Var(nil), p.args...)
	if s.Args, s.Shell = command(rest); s.Shell != "" {
		script, err := p.hereDocs(rest)
		if err != nil {
			return s.invalid("%v", err)
		}
		s.Shell = script
	}
	p.out.Steps = append(p.out.Steps, s)
	return nil
}

// hereDocs appends the here-documents of a script, for the shell; for "RUN
// <<EOF" alone, the document is the script.
func (p *dockerfile) hereDocs(script string) (string, error) {
	marks := hereMarks(script)
	if len(marks) == 0 {
		return script, nil
	}
	var b strings.Builder
	for _, m := range marks {
		for done := false; !done; p.next++ {
			if p.next >= len(p.lines) {
				return "", fmt.Errorf("the here-document %s has no end", clip(m.word))
			}
			line := p.lines[p.next]
			shown := line
			if m.tabs {
				shown = strings.TrimLeft(line, "\t")
			}
			done = shown == m.word
			b.WriteString(shown + "\n")
		}
	}
	if m := marks[0]; len(marks) == 1 && m.whole {
		return strings.TrimSuffix(b.String(), m.word+"\n"), nil
	}
	return script + "\n" + b.String(), nil
}

// hereMark is "<<WORD", "<<-WORD" or either with quotes.
type hereMark struct {
	word  string
	tabs  bool // leading tabs are removed
	whole bool // the line contains nothing else
}

func hereMarks(script string) (marks []hereMark) {
	for _, w := range strings.Fields(script) {
		rest, ok := strings.CutPrefix(w, "<<")
		if !ok || strings.HasPrefix(rest, "<") {
			continue
		}
		m := hereMark{whole: w == script}
		rest, m.tabs = strings.CutPrefix(rest, "-")
		m.word = strings.Trim(rest, `"'`)
		if m.word != "" && !strings.ContainsFunc(m.word, notName) {
			marks = append(marks, m)
		}
	}
	return marks
}

// command distinguishes the exec form, a JSON array of strings, from a script.
func command(rest string) (args []string, script string) {
	if strings.HasPrefix(rest, "[") {
		if err := json.Unmarshal([]byte(rest), &args); err == nil && len(args) > 0 {
			return args, ""
		}
	}
	return nil, rest
}

func (p *dockerfile) copyStep(word, rest string, s Step) error {
	s.Op = OpCopy
	for strings.HasPrefix(rest, "--") {
		flag, after, _ := strings.Cut(rest, " ")
		name, value, _ := strings.Cut(flag, "=")
		value = p.expand(value)
		switch name {
		case "--chown":
			s.Chown = value
		case "--chmod":
			mode, err := strconv.ParseUint(value, 8, 12)
			if err != nil {
				return s.invalid("--chmod takes octal permission bits")
			}
			s.Chmod = uint32(mode)
		default:
			return s.invalid("%s %s is not supported", word, clip(name))
		}
		rest = strings.TrimSpace(after)
	}
	list, _ := command(rest)
	if list == nil {
		var err error
		if list, err = p.words(rest); err != nil {
			return s.invalid("%v", err)
		}
	}
	for i, a := range list {
		list[i] = p.expand(a)
		if word == "ADD" && i < len(list)-1 && remoteOrArchive(list[i]) {
			return s.invalid("ADD of addresses and archives is not supported: %q", clip(list[i]))
		}
		if strings.HasPrefix(a, "<<") {
			return s.invalid("here-documents of %s are not supported", word)
		}
	}
	s.Args = list
	p.out.Steps = append(p.out.Steps, s)
	return nil
}

// remoteOrArchive reports whether ADD would download or unpack a source.
func remoteOrArchive(name string) bool {
	if strings.Contains(name, "://") || strings.HasPrefix(name, "git@") {
		return true
	}
	for _, ext := range []string{".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst"} {
		if strings.HasSuffix(name, ext) {
			return true
		}
	}
	return false
}

func (p *dockerfile) varsStep(word, rest string, s Step) error {
	s.Op = Op(strings.ToLower(word))
	words, err := p.words(rest)
	if err != nil {
		return s.invalid("%v", err)
	}
	if !strings.Contains(words[0], "=") { // the old form, ENV NAME VALUE
		name, value, ok := strings.Cut(rest, " ")
		if !ok {
			return s.invalid("%s takes NAME=VALUE", word)
		}
		s.Vars = []Var{{name, p.expand(strings.TrimSpace(value))}}
	} else {
		for _, w := range words {
			name, value, ok := strings.Cut(w, "=")
			if !ok {
				return s.invalid("%s takes NAME=VALUE, and %q is not", word, clip(w))
			}
			s.Vars = append(s.Vars, Var{p.expand(name), p.expand(value)})
		}
	}
	if s.Op == OpEnv {
		for _, v := range s.Vars {
			p.vars[v.Name] = v.Value
		}
	}
	p.out.Steps = append(p.out.Steps, s)
	return nil
}

// quotedDollar represents a '$' that does not begin a variable, between words
// and expand. It cannot occur in a Dockerfile, because it is not valid UTF-8.
const quotedDollar = "\xff"

// words splits a line at spaces like a shell, and removes quotes.
func (p *dockerfile) words(line string) ([]string, error) {
	var out []string
	var b strings.Builder
	in, quote := false, byte(0)
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case quote == '\'' && c != '\'':
			if c == '$' {
				b.WriteString(quotedDollar)
				continue
			}
			b.WriteByte(c)
		case quote != 0 && c == quote:
			quote = 0
		case c == p.escape && i+1 < len(line) && (quote == 0 || strings.IndexByte(`"$`+string(p.escape), line[i+1]) >= 0):
			i++
			in = true
			if line[i] == '$' {
				b.WriteString(quotedDollar)
				continue
			}
			b.WriteByte(line[i])
		case quote == 0 && (c == '"' || c == '\''):
			quote, in = c, true
		case quote == 0 && (c == ' ' || c == '\t'):
			if in {
				out = append(out, b.String())
				b.Reset()
				in = false
			}
		default:
			b.WriteByte(c)
			in = true
		}
	}
	if quote != 0 {
		return nil, fmt.Errorf("a quote is not closed")
	}
	if in {
		out = append(out, b.String())
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("empty")
	}
	return out, nil
}

// expand replaces $NAME, ${NAME}, ${NAME:-default} and ${NAME:+alternative}.
func (p *dockerfile) expand(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '$' || i+1 == len(s) {
			b.WriteByte(s[i])
			continue
		}
		rest := s[i+1:]
		if rest[0] == '{' {
			if end := strings.IndexByte(rest, '}'); end > 0 {
				b.WriteString(p.variable(rest[1:end]))
				i += end + 1
				continue
			}
		}
		n := strings.IndexFunc(rest, notName)
		if n < 0 {
			n = len(rest)
		}
		if n == 0 {
			b.WriteByte('$')
			continue
		}
		b.WriteString(p.vars[rest[:n]])
		i += n
	}
	return strings.ReplaceAll(b.String(), quotedDollar, "$")
}

func (p *dockerfile) variable(expr string) string {
	if name, def, ok := strings.Cut(expr, ":-"); ok {
		if v := p.vars[name]; v != "" {
			return v
		}
		return def
	}
	if name, alt, ok := strings.Cut(expr, ":+"); ok {
		if p.vars[name] != "" {
			return alt
		}
		return ""
	}
	return p.vars[expr]
}
