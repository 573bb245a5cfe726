package ops_test

import (
	"slices"
	"testing"

	"github.com/atoll-run/atoll/internal/ops"
)

func TestRoute(t *testing.T) {
	read, exec, write, admin, owner := ops.Read, ops.Exec, ops.Write, ops.Admin, ops.Owner
	for name, tt := range map[string]struct {
		route      ops.Route
		needs, may []ops.Verb
		allowed    [][]ops.Verb
		refused    [][]ops.Verb
	}{
		"nothing": {ops.Route{}, nil, nil, [][]ops.Verb{{}, {read}}, nil},
		"two permissions": {
			ops.Route{Ops: []ops.Op{ops.ProcessExec, ops.SandboxFind, ops.SandboxGet}, Some: []ops.Op{ops.FilesRead, ops.FilesWrite}},
			[]ops.Verb{read, exec},
			[]ops.Verb{write},
			[][]ops.Verb{{exec, read}, {admin}},
			[][]ops.Verb{{read}, {exec}, {write}, {}},
		},
		"admin":    {ops.Route{Ops: []ops.Op{ops.SecretList, ops.SecretRemove}}, []ops.Verb{admin}, nil, [][]ops.Verb{{admin}}, [][]ops.Verb{{read, exec, write}}},
		"no key":   {ops.Route{Ops: []ops.Op{ops.TenantList, ops.SandboxList}}, []ops.Verb{owner}, nil, nil, [][]ops.Verb{{read, exec, write, admin}, {owner}}},
		"unlisted": {ops.Route{Ops: []ops.Op{"never.heard"}}, []ops.Verb{admin}, nil, [][]ops.Verb{{admin}}, [][]ops.Verb{{read, exec, write}}},
	} {
		if got := tt.route.Needs(); !slices.Equal(got, tt.needs) {
			t.Errorf("%s: needs %v, want %v", name, got, tt.needs)
		}
		if got := tt.route.May(); !slices.Equal(got, tt.may) {
			t.Errorf("%s: may need %v, want %v", name, got, tt.may)
		}
		for _, verbs := range tt.allowed {
			if !tt.route.Allows(verbs...) {
				t.Errorf("%s: refused with %v", name, verbs)
			}
		}
		for _, verbs := range tt.refused {
			if tt.route.Allows(verbs...) {
				t.Errorf("%s: allowed with %v", name, verbs)
			}
		}
	}
}
