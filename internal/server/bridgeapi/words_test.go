package bridgeapi

import (
	"slices"
	"testing"
)

func TestWords(t *testing.T) {
	t.Parallel()
	for line, want := range map[string][]string{
		`sh -lc 'cd /workspace && make'`: {"sh", "-lc", "cd /workspace && make"},
		"sh -lc 'a\nb'":                  {"sh", "-lc", "a\nb"},
		`sh -c 'it'"'"'s'`:               {"sh", "-c", "it's"},
		`sh -c 'it'\''s'`:                {"sh", "-c", "it's"},
		`echo "a \"b\" \$HOME" ''`:       {"echo", `a "b" $HOME`, ""},
		`  ls   -la  `:                   {"ls", "-la"},
		`'cd' x`:                         {"cd", "x"},
		`env A=1 printenv A`:             {"env", "A=1", "printenv", "A"},
		`echo héllo`:                     {"echo", "héllo"},
		`cd /tmp`:                        nil,
		`A=1 ls`:                         nil,
		`ls | wc`:                        nil,
		`ls > x`:                         nil,
		`echo $HOME`:                     nil,
		`echo "$HOME"`:                   nil,
		"echo `id`":                      nil,
		`echo *`:                         nil,
		`echo ~`:                         nil,
		`echo 'open`:                     nil,
		`echo "open`:                     nil,
		"ls\nls":                         nil,
		``:                               nil,
		`''`:                             nil,
		`ls &`:                           nil,
		`ls # x`:                         nil,
		"\x03":                           nil,
		"echo \\\nx":                     nil,
	} {
		got, ok := words(line)
		if ok != (want != nil) || ok && !slices.Equal(got, want) {
			t.Errorf("words(%q) = %q, %v; want %q", line, got, ok, want)
		}
	}
}

func TestPathsStayBelowTheRoot(t *testing.T) {
	t.Parallel()
	for escaped, want := range map[string]string{
		"workspace/a%20b.txt":     "/workspace/a b.txt",
		"workspace":               "/workspace",
		"workspace/x/../y":        "/workspace/y",
		"workspace/./y/":          "/workspace/y",
		"workspace/%2e%2e%2fetc":  "",
		"workspace/../etc/passwd": "",
		"workspaces/x":            "",
		"etc/passwd":              "",
		"/etc/passwd":             "",
		"":                        "",
		"workspace/%zz":           "",
		"workspace/a%00b":         "",
		"workspace/%252e%252e/x":  "/workspace/%2e%2e/x", // is decoded once
	} {
		got, err := fileOf(escaped)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("fileOf(%q) = %q, %v; want %q", escaped, got, err, want)
		}
	}
	for in, want := range map[string]string{"": "", "x": "/workspace/x", "../x": "", "/workspace/..": "", "/tmp": "", "..": "", ".": "/workspace"} {
		got, err := within(in, "cwd")
		if got != want || (err == nil) != (want != "") {
			t.Errorf("within(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
}

func TestLinksOfArchives(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, target, want string
		ok                 bool
	}{
		{"l", "a/b", "a/b", true},
		{"d/l", "../a", "../a", true},
		{"l", "/workspace/a", "a", true},
		{"d/e/l", "/workspace/a", "../../a", true},
		{"d/l", "/workspace", "..", true},
		{"l", "/workspace", ".", true},
		{"l", "../workspace/a", "a", true}, // leaves the root on its way
		{"l", "/usr/bin/python3", "", false},
		{"l", "../x", "", false},
		{"d/l", "../../x", "", false},
		{"l", "/workspaces", "", false},
		{"l", `a\b`, "", false},
	} {
		got, ok := inside(c.name, c.target)
		if ok != c.ok || ok && got != c.want {
			t.Errorf("inside(%q, %q) = %q, %v; want %q, %v", c.name, c.target, got, ok, c.want, c.ok)
		}
	}
}

func TestCutsBetweenCharacters(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{"": 0, "abc": 0, "h\xc3": 1, "é": 0, "\xe2\x82": 2, "€": 0, "\xf0\x9f\x98": 3, "😀": 0, "\xff\xff": 0, "a\x80": 0} {
		if got := cutOff([]byte(text)); got != want {
			t.Errorf("cutOff(%q) = %d, want %d", text, got, want)
		}
	}
}

func TestAnswersAreASCII(t *testing.T) {
	t.Parallel()
	if got, want := string(ascii(map[string]string{"e": "é😀"})), `{"e":"\u00e9\ud83d\ude00"}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestNamesOfIDs(t *testing.T) {
	t.Parallel()
	if got := nameOf("abc234"); got != "bridge-abc234" {
		t.Errorf("nameOf(abc234) = %s", got)
	}
	seen := map[string]string{}
	for _, id := range []string{"ABC234", "abc_234", "abc-", newID(), "x-1", string(make([]byte, 100))} {
		name := nameOf(id)
		if other, taken := seen[name]; taken {
			t.Errorf("%q and %q have one name", id, other)
		}
		seen[name] = id
	}
}
