package bridgeapi

import "strings"

// builtins are commands that are no programs, or say something to the shell that
// stays.
var builtins = map[string]bool{
	".": true, ":": true, "alias": true, "bg": true, "cd": true, "eval": true, "exec": true, "exit": true, "export": true, "fg": true, "hash": true, "jobs": true, "logout": true, "popd": true,
	"pushd": true, "read": true, "readonly": true, "return": true, "set": true, "shift": true, "source": true, "trap": true, "type": true, "ulimit": true, "umask": true, "unalias": true, "unset": true,
	"if": true, "for": true, "while": true, "until": true, "case": true, "{": true, "!": true, "function": true, "time": true,
}

// plain are the bytes, besides letters and digits, that mean themselves to every
// shell wherever they are.
const plain = "@%+=:,./_-"

// words takes a command line apart if it is nothing but the words of one command,
// each bare or quoted as POSIX says. Quotes may hold line breaks. A line that needs
// a shell is refused, and so is a command that only a shell has.
func words(line string) ([]string, bool) {
	var out []string
	var word strings.Builder
	inside, bare := false, true // a word; the first word has no quotes
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case c == ' ' || c == '\t':
			if inside {
				out = append(out, word.String())
				word.Reset()
				inside = false
			}
			continue
		case c == '\'' || c == '"':
			end, ok := quoted(line, i, &word)
			if !ok {
				return nil, false
			}
			i = end
			bare = bare && len(out) > 0
		case c == '\\' && i+1 < len(line) && line[i+1] != '\n':
			i++
			word.WriteByte(line[i])
			bare = bare && len(out) > 0
		case c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c >= 0x80 || strings.IndexByte(plain, c) >= 0:
			word.WriteByte(c)
		default:
			return nil, false
		}
		inside = true
	}
	if inside {
		out = append(out, word.String())
	}
	if len(out) == 0 || out[0] == "" || bare && (builtins[out[0]] || strings.Contains(out[0], "=")) {
		return nil, false
	}
	return out, true
}

// quoted appends what the quotes that begin at a place hold, and returns where they
// end.
func quoted(line string, at int, word *strings.Builder) (end int, ok bool) {
	quote := line[at]
	for i := at + 1; i < len(line); i++ {
		switch c := line[i]; {
		case c == quote:
			return i, true
		case quote == '\'':
			word.WriteByte(c)
		case c == '$' || c == '`':
			return 0, false
		case c == '\\' && i+1 < len(line) && strings.IndexByte("$`\"\\", line[i+1]) >= 0:
			i++
			word.WriteByte(line[i])
		case c == '\\' && i+1 < len(line) && line[i+1] == '\n':
			i++ // the line goes on
		default:
			word.WriteByte(c)
		}
	}
	return 0, false
}
