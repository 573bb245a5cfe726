package daemon_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

// RB-75.
func TestReadOnlyComputers(t *testing.T) {
	t.Setenv("PATH", "/nothing") // sandboxes of provider host have it
	v := newViewing(t)
	const look, act = `{"actions":[{"action":"cursor"}]}`, `{"actions":[{"action":"cursor"},{"action":"click"}]}`
	const copied, pasted = `{"actions":[{"action":"copy","text":"x"}]}`, `{"actions":[{"action":"clipboard"}]}`
	for _, c := range []struct {
		key, body string
		want      int
		code      sandbox.Code
	}{
		{"reader", act, http.StatusForbidden, sandbox.CodeDenied},
		{"reader", look, http.StatusNotImplemented, sandbox.CodeUnsupported}, // allowed, but there is no xdotool
		{"acme", `{"readOnly":true,` + act[1:], http.StatusForbidden, sandbox.CodeDenied},
		{"acme", `{"readOnly":true,` + look[1:], http.StatusNotImplemented, sandbox.CodeUnsupported},
		{"acme", act, http.StatusNotImplemented, sandbox.CodeUnsupported},
		{"acme", `{"actions":[]}`, http.StatusBadRequest, sandbox.CodeInvalid},
		{"acme", `{"actions":[{"action":"click"},{"action":"key"}]}`, http.StatusBadRequest, sandbox.CodeInvalid},
		{"reader", copied, http.StatusForbidden, sandbox.CodeDenied},
		{"reader", pasted, http.StatusForbidden, sandbox.CodeDenied},
		{"acme", `{"readOnly":true,` + copied[1:], http.StatusForbidden, sandbox.CodeDenied},
		{"acme", `{"readOnly":true,` + pasted[1:], http.StatusForbidden, sandbox.CodeDenied},
		{"acme", pasted, http.StatusNotImplemented, sandbox.CodeUnsupported},
		{"acme", `{"actions":[{"action":"copy","text":"` + strings.Repeat("x", viewing.MaxClipboard+1) + `"}]}`, http.StatusBadRequest, sandbox.CodeInvalid},
		{"rival", pasted, http.StatusNotFound, sandbox.CodeNotFound},
		{"rival", look, http.StatusNotFound, sandbox.CodeNotFound},
	} {
		var problem struct{ Code sandbox.Code }
		status := v.call(c.key, http.MethodPost, "/v1/sandboxes/box/computer", c.body, &problem)
		if status != c.want || problem.Code != c.code {
			t.Errorf("%s %.80s: %d %s, want %d %s", c.key, c.body, status, problem.Code, c.want, c.code)
		}
	}
	if status := v.call("reader", http.MethodPut, "/v1/sandboxes/box/desktop", `{}`, nil); status != http.StatusForbidden {
		t.Errorf("a key that may only read starts a desktop: %d", status)
	}
}
