package kernel

import (
	"flag"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the generated page instead of comparing with it")

// TestVersionIsCurrent compares the version that this package is made for with
// go.mod and with what is linked in.
func TestVersionIsCurrent(t *testing.T) {
	mod, err := os.ReadFile("../../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if want := "gvisor.dev/gvisor " + Version; !strings.Contains(string(mod), want) {
		t.Errorf("go.mod does not contain %q", want)
	}
	if got := linkedVersion(); got != "" && got != Version {
		t.Errorf("gVisor %s is linked in, want %s", got, Version)
	}
}

// TestItemsFit fails if a gVisor update changed something that this package
// relies on.
func TestItemsFit(t *testing.T) {
	for _, item := range Items() {
		if item.Disabled != nil {
			t.Errorf("%s: %v", item.Name, item.Disabled)
		}
	}
}

// TestCheckerFindsChanges checks that a missing field, a field of another type
// and a missing method are errors, and that none of them panics.
func TestCheckerFindsChanges(t *testing.T) {
	type set struct{ off int } //nolint:unused // used by reflection
	of := reflect.TypeFor[set]()
	for name, check := range map[string]func(*checker){
		"has no field end":        func(c *checker) { offset[int](c, of, "end") },
		"off is a int and not":    func(c *checker) { offset[uint64](c, of, "off") },
		"is not a struct":         func(c *checker) { offset[int](c, reflect.TypeFor[int](), "off") },
		"has no method RemoveAll": func(c *checker) { c.method(of, "RemoveAll", 0, 0) },
		"has no method ExportSli": func(c *checker) { c.exported(of) },
		"has no field vmas":       func(c *checker) { c.field(of, "vmas") },
	} {
		c := &checker{}
		check(c)
		if c.err == nil || !strings.Contains(c.err.Error(), name) {
			t.Errorf("got error %v, want one that contains %q", c.err, name)
		}
	}
	c := &checker{}
	if offset[int](c, of, "off"); c.err != nil {
		t.Errorf("a field that fits: %v", c.err)
	}
}

// TestPageIsCurrent compares docs/design/gvisor-internals.md with Items, or
// rewrites it on request.
func TestPageIsCurrent(t *testing.T) {
	const file = "../../../docs/design/gvisor-internals.md"
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- generated: begin -->\n", "<!-- generated: end -->\n"
	before, rest, ok := strings.Cut(string(page), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no markers for the table", file)
	}
	var table strings.Builder
	table.WriteString("| what | why | relies on | gain by itself | without it |\n|---|---|---|---|---|\n")
	for _, i := range Items() {
		fmt.Fprintf(&table, "| **%s**: %s | %s | %s | %s | %s |\n", i.Name, i.Does, i.Why, i.Relies, i.Gain, i.Without)
	}
	want := before + begin + table.String() + end + after
	if want == string(page) {
		return
	}
	if !*update {
		t.Fatalf("%s is not current; run: go generate ./provider/gvisor/kernel", file)
	}
	if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}
