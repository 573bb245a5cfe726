package sandbox

import (
	"strings"
	"testing"
)

func TestWorkspaceValidate(t *testing.T) {
	for name, w := range map[string]WorkspaceMount{
		"plain":   {Name: "w"},
		"read":    {Name: "w", Mode: WorkspaceRead},
		"limited": {Name: "my-work", Mode: WorkspaceExclusive, ReadOnly: []string{"a", "b/c"}, Writable: []string{"d"}},
	} {
		if err := (&Spec{Workspaces: []WorkspaceMount{w}}).Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, w := range map[string]WorkspaceMount{
		"no name":               {},
		"a path as name":        {Name: "../w"},
		"an unknown mode":       {Name: "w", Mode: "lent"},
		"a relative place":      {Name: "w", Path: "mnt"},
		"the root":              {Name: "w", Path: "/mnt/.."},
		"a place of the kernel": {Name: "w", Path: "/proc/1"},
		"a place with NUL":      {Name: "w", Path: "/a\x00"},
		"read and lists":        {Name: "w", Mode: WorkspaceRead, Writable: []string{"a"}},
		"absolute":              {Name: "w", ReadOnly: []string{"/etc"}},
		"climbs":                {Name: "w", Writable: []string{"../other"}},
		"climbs inside":         {Name: "w", Writable: []string{"a/../../other"}},
		"the top":               {Name: "w", Writable: []string{"."}},
		"empty path":            {Name: "w", Writable: []string{""}},
		"twice":                 {Name: "w", ReadOnly: []string{"a"}, Writable: []string{"a"}},
		"NUL":                   {Name: "w", ReadOnly: []string{"a\x00b"}},
		"too many":              {Name: "w", ReadOnly: strings.Split(strings.Repeat("x,", 40), ",")},
	} {
		if err := (&Spec{Workspaces: []WorkspaceMount{w}}).Validate(); CodeOf(err) != CodeInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, w := range []WorkspaceMount{{Name: "w", Mode: WorkspaceShared}, {Name: "w", Path: "/mnt/data/"}} {
		if err := (&Spec{Workspaces: []WorkspaceMount{w}, Mounts: []Mount{{Source: "/src", Target: "/src"}}}).Validate(); err != nil {
			t.Errorf("%+v: %v", w, err)
		}
	}
	if s := (Spec{Workspaces: []WorkspaceMount{{Name: "w", Path: "/src/sub"}}, Mounts: []Mount{{Source: "/src", Target: "/src"}}}); CodeOf(s.Validate()) != CodeInvalid {
		t.Error("a workspace below a mount")
	}
	for _, target := range []string{"/workspace", "/workspace/sub"} {
		s := Spec{Workspaces: []WorkspaceMount{{Name: "w"}}, Mounts: []Mount{{Source: "/src", Target: target}}}
		if err := s.Validate(); CodeOf(err) != CodeInvalid {
			t.Errorf("a mount at %s: %v", target, err)
		}
	}
	several := Spec{Workspaces: []WorkspaceMount{{Name: "a", Path: "/a"}, {Name: "b", Path: "/ab"}, {Name: "c"}}}
	if err := several.Validate(); err != nil {
		t.Errorf("several: %v", err)
	}
	for name, more := range map[string]WorkspaceMount{
		"twice": {Name: "a", Path: "/z"}, "at the same place": {Name: "z", Path: "/a/"}, "below": {Name: "z", Path: "/a/b"}, "above": {Name: "z", Path: "/workspace/.."},
	} {
		s := Spec{Workspaces: append(several.Workspaces[:3:3], more)}
		if err := s.Validate(); CodeOf(err) != CodeInvalid {
			t.Errorf("several, %s: %v", name, err)
		}
	}
	if s := (Spec{Workspaces: make([]WorkspaceMount, 40)}); CodeOf(s.Validate()) != CodeInvalid {
		t.Error("too many workspaces")
	}
}
