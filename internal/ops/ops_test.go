package ops_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"testing"

	"github.com/atoll-run/atoll/internal/ops"
)

// Every operation that is declared has a permission and a class in the table,
// and the table has no other.
func TestTableIsComplete(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "ops.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	declared := map[ops.Op]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); !ok || kind.Name != "Op" {
			return true
		}
		name, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil || declared[ops.Op(name)] {
			t.Errorf("%s: %q is declared twice, or no string: %v", spec.Names[0].Name, name, err)
		}
		declared[ops.Op(name)] = true
		return true
	})
	if len(declared) < 50 {
		t.Fatalf("found only %d operations: nothing would be checked", len(declared))
	}
	for _, o := range ops.All() {
		if !declared[o] {
			t.Errorf("the table lists %s, which is not declared", o)
		}
		delete(declared, o)
	}
	for o := range declared {
		t.Errorf("%s is not in the table", o)
	}
}

// Operations that change something are recorded.
func TestClasses(t *testing.T) {
	for _, o := range ops.All() {
		reads := o.Verb() == ops.Read || o == ops.ImageUses || o == ops.DaemonDiagnose
		if o.Class() == ops.Glance && !reads {
			switch o {
			case ops.ProcessResize, ops.ProcessClose, ops.SessionHeartbeat, ops.KeyList, ops.TenantList, ops.TenantGet, ops.MachineLookup, ops.NodeList:
			default:
				t.Errorf("%s takes %s and is not recorded", o, o.Verb())
			}
		}
	}
	if unknown := ops.Op("never.heard"); unknown.Verb() != ops.Admin || unknown.Class() != ops.Recorded {
		t.Errorf("an unknown operation takes %s, class %d", unknown.Verb(), unknown.Class())
	}
}
