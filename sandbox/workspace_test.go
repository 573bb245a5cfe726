package sandbox

import (
	"strings"
	"testing"
)

func TestWorkspaceValidate(t *testing.T) {
	for name, w := range map[string]Workspace{
		"plain":   {Name: "w"},
		"read":    {Name: "w", Mode: WorkspaceRead},
		"limited": {Name: "my-work", Mode: WorkspaceExclusive, ReadOnly: []string{"a", "b/c"}, Writable: []string{"d"}},
	} {
		if err := (&Spec{Workspace: &w}).Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, w := range map[string]Workspace{
		"no name":         {},
		"a path as name":  {Name: "../w"},
		"an unknown mode": {Name: "w", Mode: "shared"},
		"read and lists":  {Name: "w", Mode: WorkspaceRead, Writable: []string{"a"}},
		"absolute":        {Name: "w", ReadOnly: []string{"/etc"}},
		"climbs":          {Name: "w", Writable: []string{"../other"}},
		"climbs inside":   {Name: "w", Writable: []string{"a/../../other"}},
		"the top":         {Name: "w", Writable: []string{"."}},
		"empty path":      {Name: "w", Writable: []string{""}},
		"twice":           {Name: "w", ReadOnly: []string{"a"}, Writable: []string{"a"}},
		"NUL":             {Name: "w", ReadOnly: []string{"a\x00b"}},
		"too many":        {Name: "w", ReadOnly: strings.Split(strings.Repeat("x,", 40), ",")},
	} {
		if err := (&Spec{Workspace: &w}).Validate(); CodeOf(err) != CodeInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, target := range []string{"/workspace", "/workspace/sub"} {
		s := Spec{Workspace: &Workspace{Name: "w"}, Mounts: []Mount{{Source: "/src", Target: target}}}
		if err := s.Validate(); CodeOf(err) != CodeInvalid {
			t.Errorf("a mount at %s: %v", target, err)
		}
	}
}
