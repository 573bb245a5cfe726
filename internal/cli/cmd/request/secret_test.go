package request

import (
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

func TestSecretRef(t *testing.T) {
	r, err := secretRef("github,env=TOKEN,host=a.example,host=b.example:8443,in=query:key,mode=gateway")
	if err != nil || r.Name != "github" || r.Env != "TOKEN" || len(r.Hosts) != 2 || r.In[0] != "query:key" || r.Mode != sandbox.SecretGateway {
		t.Errorf("%+v %v", r, err)
	}
	for _, bad := range []string{"", "a b", "github=value", "github,value", "github,evil=1", ",env=X"} {
		if _, err := secretRef(bad); sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
