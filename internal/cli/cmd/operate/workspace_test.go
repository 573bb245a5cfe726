package operate

import "testing"

// Versions are written as in the guide and as in the list.
func TestVersionArg(t *testing.T) {
	for text, want := range map[string]int{"1": 1, "v1": 1, "v12": 12, "0": 0, "": -1, "v": -1, "-1": -1, "v-1": -1, "vv1": -1, "one": -1} {
		n, err := versionArg(text)
		if want < 0 && err == nil || want >= 0 && (err != nil || n != want) {
			t.Errorf("%q: %d %v", text, n, err)
		}
	}
}
