package e2bapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

func TestTokensOfASandbox(t *testing.T) {
	const good = `{"audience":"sts.example.com","tokenType":"JWT-SVID"}`
	for asked, want := range map[string]map[string]string{
		`{}`:            {},
		`{"tokens":{}}`: {},
		`{"tokens":{"aws":` + good + `,"a b.c":{"audience":"x","tokenType":"JWT-SVID"}}}`: {"aws": "sts.example.com", "a b.c": "x"},
		`{"tokens":{"":` + good + `}}`:                                                                nil,
		`{"tokens":{"a}b":` + good + `}}`:                                                             nil,
		`{"tokens":{"a\nb":` + good + `}}`:                                                            nil,
		`{"tokens":{"` + strings.Repeat("x", 250) + `":` + good + `}}`:                                nil,
		`{"tokens":{"a":{"audience":"","tokenType":"JWT-SVID"}}}`:                                     nil,
		`{"tokens":{"a":{"audience":"x\ny","tokenType":"JWT-SVID"}}}`:                                 nil,
		`{"tokens":{"a":{"audience":"x","tokenType":"X509-SVID"}}}`:                                   nil,
		`{"tokens":{"a":{"audience":"x"}}}`:                                                           nil,
		fmt.Sprintf(`{"tokens":{"1":%[1]s,"2":%[1]s,"3":%[1]s,"4":%[1]s,"5":%[1]s,"6":%[1]s}}`, good): nil,
	} {
		var i iam
		if err := json.Unmarshal([]byte(asked), &i); err != nil {
			t.Fatal(err)
		}
		labels := map[string]string{"team": "red"}
		err := i.label(labels)
		if want == nil {
			if sandbox.CodeOf(err) != sandbox.CodeInvalid {
				t.Errorf("%s: %v", asked, err)
			}
			continue
		}
		if got := audiences(labels); err != nil || !maps.Equal(got, want) {
			t.Errorf("%s: %v %v", asked, got, err)
		}
	}
}
