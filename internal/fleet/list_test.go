package fleet

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

func TestParse(t *testing.T) {
	for text, want := range map[string][2]string{
		"a=https://a.example:7070":   {"a", "https://a.example:7070"},
		"https://a.example:7070/":    {"a-example-7070", "https://a.example:7070"},
		"http://127.0.0.1:7070":      {"127-0-0-1-7070", "http://127.0.0.1:7070"},
		"http://[::1]:7070":          {"1--7070", "http://[::1]:7070"},
		"9=https://a.example":        {"9", "https://a.example"},
		"a=http://localhost:1":       {"a", "http://localhost:1"},
		"a=http://a.example:7070":    {}, // the key would travel in the clear
		"a=ftp://a.example":          {},
		"a=https://key@a.example":    {},
		"a=https://a.example/x?y=z":  {},
		"A=https://a.example":        {},
		"=https://a.example":         {},
		"a b=https://a.example:7070": {},
		"a.example:7070":             {},
		"":                           {},
	} {
		name, address, err := Parse(text)
		if name != want[0] || address != want[1] || (err == nil) != (want[0] != "") || err != nil && sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%q: %q, %q, %v; want %q", text, name, address, err, want)
		}
	}
}

func TestListAndKeys(t *testing.T) {
	write := func(text string, mode os.FileMode) string {
		path := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	c := Config{Nodes: []string{"a=https://a.example"}, File: write("# more\n\n b=https://b.example # the second\n", 0o644)}
	found := []Found{{Name: "c", URL: "https://c.nodes.x.svc:7070", Dial: "10.0.0.7:7070"}}
	all, dial, err := c.list(found)
	if err != nil || len(all) != 3 || all[1] != (listed{"b", "https://b.example"}) || all[2] != (listed{"c", "https://c.nodes.x.svc:7070"}) {
		t.Errorf("%+v, %v", all, err)
	}
	if len(dial) != 1 || dial["c.nodes.x.svc:7070"] != "10.0.0.7:7070" {
		t.Errorf("%v", dial)
	}
	c.File = write("a=https://b.example", 0o644)
	if _, _, err := c.list(nil); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("two nodes of a name: %v", err)
	}
	keys, err := readKeys(write("a=ak_1\nak_2\n", 0o600))
	if err != nil || keys["a"] != "ak_1" || keys[""] != "ak_2" {
		t.Errorf("%v, %v", keys, err)
	}
	if _, err := readKeys(write("ak_1", 0o644)); sandbox.CodeOf(err) != sandbox.CodeInvalid {
		t.Errorf("a file that others can read: %v", err)
	}
}
