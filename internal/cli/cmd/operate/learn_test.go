package operate

import (
	"testing"

	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/sandbox"
)

// Parsed records contain exactly what was decided.
func TestSeen(t *testing.T) {
	for subject, want := range map[string]policy.Seen{
		"http GET api.example.com:443/v1/a 200":                      {Host: "api.example.com", Port: 443, Method: "GET", Path: "/v1/a"},
		"http POST [2606:2800::1]:8080/x%20y 403 (denied by r) ×3":   {Host: "[2606:2800::1]", Port: 8080, Method: "POST", Path: "/x%20y"},
		"tls db.example.com:5432":                                    {Host: "db.example.com", Port: 5432},
		"tcp 192.0.2.7:22 (denied, because no rule matches) ×2":      {Host: "192.0.2.7", Port: 22},
		"dns evil.example (no rule can allow it)":                    {Host: "evil.example", Port: 443},
		"udp 192.0.2.7:53":                                           {},
		"icmp 192.0.2.7":                                             {},
		"http GET evil.example:443/x http GET api.example.com:443/ ": {Host: "evil.example", Port: 443, Method: "GET", Path: "/x"},
		"tcp evil.example:99999":                                     {},
		"":                                                           {},
	} {
		got, ok := seen(&sandbox.Event{Subject: subject, Type: "egress.denied"})
		if ok != (want != policy.Seen{}) || ok && got != want {
			t.Errorf("%q: %+v %v", subject, got, ok)
		}
	}
	if _, ok := seen(&sandbox.Event{Subject: "dns good.example", Type: "egress.allowed"}); ok {
		t.Error("a question is taken for a connection")
	}
}
