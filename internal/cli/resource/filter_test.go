package resource

import (
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

func TestFilters(t *testing.T) {
	s := sandbox.Sandbox{ID: "sb-1a2b", Name: "web-1", State: sandbox.Running, Image: "host", Labels: map[string]string{"team": "red", "tier": "1"}}
	for _, tc := range []struct {
		texts []string
		want  bool
	}{
		{nil, true},
		{[]string{"name=web"}, true},
		{[]string{"name=db"}, false},
		{[]string{"name=db", "name=web"}, true},
		{[]string{"id=sb-1a"}, true},
		{[]string{"id=1a"}, false},
		{[]string{"status=running"}, true},
		{[]string{"state=stopped"}, false},
		{[]string{"state=stopped", "status=running"}, true},
		{[]string{"image=host", "state=paused"}, false},
		{[]string{"label=team"}, true},
		{[]string{"label=team=red", "label=tier=1"}, true},
		{[]string{"label=team=red", "label=tier=2"}, false},
	} {
		f, err := ParseFilters(tc.texts)
		if err != nil {
			t.Errorf("%q: %v", tc.texts, err)
		} else if got := f.Match(s); got != tc.want {
			t.Errorf("%q: %v", tc.texts, got)
		}
	}
	for _, bad := range []string{"", "running", "state", "state=", "=x", "color=red"} {
		if _, err := ParseFilters([]string{bad}); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}
