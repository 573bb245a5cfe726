package sandboxes

import (
	"strings"
	"testing"
)

// A figure that is not known comes last, whichever way it is sorted.
func TestOrders(t *testing.T) {
	small, large, share := int64(1), int64(2), 3.0
	a, b, c := load{Name: "a", Memory: &small, CPU: &share}, load{Name: "b", Memory: &large}, load{Name: "c"}
	for by, want := range map[string][2]load{"memory": {b, a}, "cpu": {a, c}, "name": {a, b}, "disk": {a, a}} {
		if got := orders[by](want[0], want[1]); got > 0 || got == 0 && by != "disk" {
			t.Errorf("%s: %d", by, got)
		}
	}
	if text := loadTable([]load{a, c}); !strings.Contains(text, "a      3.0     1B / -") || !strings.Contains(text, "c      -       - / -") {
		t.Errorf("%s", text)
	}
}
