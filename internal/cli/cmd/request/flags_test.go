package request

import (
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

func TestRestartFlag(t *testing.T) {
	for text, want := range map[string]restartFlag{
		"no": {policy: sandbox.RestartNo}, "always": {policy: sandbox.RestartAlways},
		"on-failure": {policy: sandbox.RestartOnFailure}, "on-failure:5": {sandbox.RestartOnFailure, 5},
	} {
		var got restartFlag
		if err := got.Set(text); err != nil || got != want || got.String() != text {
			t.Errorf("%q is %v, %v", text, got, err)
		}
	}
	for _, bad := range []string{"", "on-failure:", "on-failure:0", "on-failure:-1", "always:3", "unless-stopped"} {
		if err := new(restartFlag).Set(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}
