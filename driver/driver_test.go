package driver

import "testing"

type pauser interface{ Pause() }

type plain struct{}

type pausing struct{}

func (pausing) Pause() {}

type wrapper struct{ inner any }

func (w wrapper) Unwrap() any { return w.inner }

func TestAs(t *testing.T) {
	for _, tc := range []struct {
		name string
		v    any
		want bool
	}{
		{"implements it", pausing{}, true},
		{"does not", plain{}, false},
		{"wrapped", wrapper{pausing{}}, true},
		{"wrapped twice", wrapper{wrapper{pausing{}}}, true},
		{"wraps what does not", wrapper{plain{}}, false},
		{"wraps nothing", wrapper{nil}, false},
		{"nothing", nil, false},
	} {
		if _, ok := As[pauser](tc.v); ok != tc.want {
			t.Errorf("%s: found = %v", tc.name, ok)
		}
	}
}
