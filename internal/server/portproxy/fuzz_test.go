package portproxy

import (
	"net/http"
	"strings"
	"testing"
)

// FuzzTarget: every request is for at most one port of one sandbox, and no
// token or API key of Atoll is forwarded.
func FuzzTarget(f *testing.F) {
	f.Add("8000-box.localhost:80", "", "", "Bearer pt_x", "", "")
	f.Add("localhost", "box", "22", "", "pt_x", "")
	f.Add("8000-box.ports.test.", "box", "", "Basic x", "atoll_x", "e2b_atoll_x")
	f.Add("[::1]:80", "../x", "0", "bearer  atoll_x", "", "")
	p := New(nil, Options{Domains: []string{"ports.test"}})
	f.Fuzz(func(t *testing.T, host, ref, port, auth, own, key string) {
		h := http.Header{}
		for name, value := range map[string]string{HeaderSandbox: ref, HeaderPort: port, "Authorization": auth, HeaderToken: own, headerKey: key} {
			if value != "" {
				h.Set(name, value)
			}
		}
		r := &http.Request{Host: host, Header: h}
		if !p.Match(r) {
			return
		}
		to, err := p.target(r)
		if err == nil && (to.port == 0 || strings.Contains(to.ref, "/") && ref == "") {
			t.Errorf("%+v", to)
		}
		found, err := token(&http.Request{Header: h})
		if err != nil {
			return
		}
		if found == "" || IsKey(found) {
			t.Errorf("the token is %q", found)
		}
		for _, name := range []string{HeaderToken, HeaderSandbox, HeaderPort} {
			if h.Get(name) != "" {
				t.Errorf("%s is passed on: %q", name, h.Get(name))
			}
		}
		for name, values := range h {
			for _, v := range values {
				if IsKey(v) {
					t.Errorf("%s passes an API key on: %q", name, v)
				}
			}
		}
	})
}
