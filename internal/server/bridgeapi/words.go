package bridgeapi

import "strings"

// builtins are commands that are not programs, or that change the state of the
// shell.
var builtins = map[string]bool{
	".": true, ":": true, "alias": true, "bg": true, "cd": true, "eval": true, "exec": true, "exit": true, "export": true, "fg": true, "hash": true, "jobs": true, "logout": true, "popd": true,
	"pushd": true, "read": true, "readonly": true, "return": true, "set": true, "shift": true, "source": true, "trap": true, "type": true, "ulimit": true, "umask": true, "unalias": true, "unset": true,
	"if": true, "for": true, "while": true, "until": true, "case": true, "{": true, "!": true, "function": true, "time": true,
}

// plain are the bytes, other than letters and digits, that have no special
// meaning in any shell.
const plain = "@%+=:,./_-"

// words splits a command line that consists only of the words of one command,
// unquoted or quoted as in POSIX. Quotes may contain line breaks. It returns
// false for a line that needs a shell and for shell builtins.
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

// quoted appends the content of the quotes that begin at a position, and
// returns the position of their end.
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
			i++ // the line continues
		default:
			word.WriteByte(c)
		}
	}
	return 0, false
}
