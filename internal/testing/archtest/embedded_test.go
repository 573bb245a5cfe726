package archtest

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestEmbeddedDaemon compares what a program with an embedded daemon is linked
// with, with a committed list.
func TestEmbeddedDaemon(t *testing.T) {
	t.Parallel()
	checkLinked(t, "testdata/atolld.deps", []string{"testing", "github.com/spf13/cobra", "github.com/spf13/pflag", module + "/driver/drivertest", module + "/internal/testing/fake", module + "/internal/cli"}, "./atolld")
}

// TestLightProgram compares what the light program is linked with, with a
// committed list.
func TestLightProgram(t *testing.T) {
	t.Parallel()
	checkLinked(t, "testdata/light.deps", []string{
		"database/sql", kernel, "github.com/nats-io", "k8s.io", "go.opentelemetry.io", module + "/provider", module + "/internal/daemon", module + "/internal/store", module + "/internal/server",
		module + "/internal/gateway", module + "/internal/guest", module + "/internal/machine", module + "/internal/providerset",
	}, "-tags", "light", "./cmd/atoll")
}

// checkLinked compares the packages and modules that a program is linked with,
// with a committed list, and with those that it must not have. To accept a change:
// ATOLL_UPDATE=1 go test ./internal/testing/archtest
func checkLinked(t *testing.T, list string, without []string, program ...string) {
	const format = "{{if not .Standard}}{{if .Module.Main}}{{.ImportPath}}{{else}}{{.Module.Path}}{{end}}{{else}}std:{{.ImportPath}}{{end}}"
	var got []string
	for line := range strings.Lines(string(goOutput(t, append([]string{"-C", root, "list", "-deps", "-f", format}, program...)...))) {
		line = strings.TrimSpace(line)
		std, isStd := strings.CutPrefix(line, "std:")
		if isStd {
			line = std
		}
		for _, bad := range without {
			if line == bad || strings.HasPrefix(line, bad+"/") {
				t.Errorf("it is linked with %s", line)
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
			t.Errorf("it is linked with %s, which is not in %s", line, list)
		}
	}
	for _, line := range known {
		if !slices.Contains(got, line) {
			t.Errorf("%s lists %s, which it is not linked with", list, line)
		}
	}
	t.Log("if that is wanted: ATOLL_UPDATE=1 go test ./internal/testing/archtest")
}
