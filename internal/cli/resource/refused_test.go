package resource

import "testing"

func TestOperatorFlag(t *testing.T) {
	for subject, want := range map[string]string{
		"tcp 10.1.2.3:8000 (10.1.2.3 is a private address, which the operator of this machine does not allow)":                 "atoll up --egress-allow 10.1.2.3",
		"http GET mirror.example:80/simple/ (fd00::1 is a private address, which the operator of this machine does not allow)": "atoll up --egress-allow fd00::1",
		"tcp 192.0.2.1:80 (no rule allows it)": "",
	} {
		if got := OperatorFlag(subject); got != want {
			t.Errorf("for %q it is %q, want %q", subject, got, want)
		}
	}
}
