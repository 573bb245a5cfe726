package archtest

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestEmbeddedDaemon compares the packages and modules that a program with an
// embedded daemon is linked with, with a committed list. To accept a change:
// ATOLL_UPDATE=1 go test ./internal/archtest
func TestEmbeddedDaemon(t *testing.T) {
	const list = "testdata/atolld.deps"
	const format = "{{if not .Standard}}{{if .Module.Main}}{{.ImportPath}}{{else}}{{.Module.Path}}{{end}}{{else}}std:{{.ImportPath}}{{end}}"
	var got []string
	for line := range strings.Lines(string(goOutput(t, "-C", root, "list", "-deps", "-f", format, "./atolld"))) {
		line = strings.TrimSpace(line)
		std, isStd := strings.CutPrefix(line, "std:")
		if isStd {
			line = std
		}
		for _, bad := range []string{"testing", "github.com/spf13/cobra", "github.com/spf13/pflag", module + "/drivertest", module + "/internal/fake", module + "/internal/cli"} {
			if line == bad || strings.HasPrefix(line, bad+"/") {
				t.Errorf("atolld is linked with %s", line)
			}
		}
		if !isStd && line != "" && !slices.Contains(got, line) {
			got = append(got, line)
		}
	}
	slices.Sort(got)
	text := []byte(strings.Join(got, "\n") + "\n")
	if os.Getenv("ATOLL_UPDATE") != "" {
		if err := os.WriteFile(list, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(list)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(text, want) {
		return
	}
	known := strings.Split(strings.TrimSpace(string(want)), "\n")
	for _, line := range got {
		if !slices.Contains(known, line) {
			t.Errorf("atolld is linked with %s, which is not in %s", line, list)
		}
	}
	for _, line := range known {
		if !slices.Contains(got, line) {
			t.Errorf("%s lists %s, which atolld is not linked with", list, line)
		}
	}
	t.Log("if that is wanted: ATOLL_UPDATE=1 go test ./internal/archtest")
}
