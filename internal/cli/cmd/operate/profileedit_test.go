package operate

import (
	"errors"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/internal/cli/clitest"
	"github.com/atoll-run/atoll/sandbox"
)

// A profile that is shown can be read again.
func TestEscapedYAML(t *testing.T) {
	t.Parallel()
	want := sandbox.Profile{Name: "docs", Rules: []sandbox.Rule{{Name: clitest.Evil + "\n\t: é ✓ 日本", Action: sandbox.Allow, Hosts: []string{"example.com", "*"}}}}
	text, err := yamlOf(want)
	if err != nil {
		t.Fatal(err)
	}
	if found := clitest.Harm(string(text)); found != "" || !strings.Contains(string(text), "é ✓ 日本") || !strings.Contains(string(text), "name: docs\n") {
		t.Errorf("contains %s:\n%s", found, text)
	}
	var got sandbox.Profile
	if err := parseProfile(text, &got, func(why string) error { return errors.New(why) }); got.Rules == nil || got.Rules[0].Name != want.Rules[0].Name {
		t.Errorf("read as %+v, %v:\n%s", got, err, text)
	}
}
