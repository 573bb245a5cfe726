package registry_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/atoll-run/atoll/internal/image/registry"
	"github.com/atoll-run/atoll/sandbox"
)

const (
	ecrKey    = "AKIDEXAMPLE"
	ecrSecret = "canary-aws-4b1d"
	ecrRegion = "eu-west-1"
)

// startECR starts a server that returns a login for requests signed with the
// secret for the region.
func startECR(t *testing.T, token string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Header.Get("X-Amz-Target") != "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken" || !signedWell(r, body) {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"__type":"InvalidSignatureException"}`)
			return
		}
		w.Header().Set("Content-Type", "application/x-amz-json-1.1")
		fmt.Fprintf(w, `{"authorizationData":[{"authorizationToken":%q,"expiresAt":1.7e9,"proxyEndpoint":"https://x.test"}]}`, token)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// signedWell signs a request anew, as AWS does to check one.
func signedWell(r *http.Request, body []byte) bool {
	at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	if err != nil || time.Since(at).Abs() > 5*time.Minute {
		return false
	}
	again, err := http.NewRequestWithContext(context.Background(), r.Method, "http://"+r.Host+r.URL.Path, strings.NewReader(string(body)))
	if err != nil {
		return false
	}
	_, list, _ := strings.Cut(r.Header.Get("Authorization"), "SignedHeaders=")
	list, _, _ = strings.Cut(list, ",")
	for name := range strings.SplitSeq(list, ";") {
		if name != "host" && name != "content-length" {
			again.Header.Set(name, r.Header.Get(name))
		}
	}
	sum := sha256.Sum256(body)
	err = v4.NewSigner().SignHTTP(context.Background(), aws.Credentials{AccessKeyID: ecrKey, SecretAccessKey: ecrSecret}, again, hex.EncodeToString(sum[:]), "ecr", ecrRegion, at)
	return err == nil && again.Header.Get("Authorization") == r.Header.Get("Authorization")
}

func keysOf(endpoint, region, secret string) registry.AWSKeys {
	return registry.AWSKeys{AccessKey: ecrKey, Secret: func() string { return secret }, Region: region, Image: "x.test/app:1", Endpoint: endpoint}
}

// inAWS are keys for an image, at AWS itself.
func inAWS(image string) registry.AWSKeys {
	keys := keysOf("", ecrRegion, ecrSecret)
	keys.Image = image
	return keys
}

func TestECRLogin(t *testing.T) {
	ctx := t.Context()
	good := base64.StdEncoding.EncodeToString([]byte("AWS:pass:word"))
	endpoint := startECR(t, good)
	username, password, err := registry.ECRLogin(ctx, keysOf(endpoint, ecrRegion, ecrSecret), registry.Options{})
	if err != nil || username != "AWS" || password != "pass:word" {
		t.Errorf("the login is %q %q, %v", username, password, err)
	}
	loopback := func(a netip.Addr) bool { return a.IsLoopback() }
	if _, _, err = registry.ECRLogin(ctx, keysOf(endpoint, ecrRegion, ecrSecret), registry.Options{Permit: loopback}); err != nil {
		t.Errorf("an address that is permitted: %v", err)
	}
	nothing := func(netip.Addr) bool { return false }
	elsewhere := httptest.NewServer(http.RedirectHandler(endpoint, http.StatusTemporaryRedirect))
	defer elsewhere.Close()
	for name, test := range map[string]struct {
		keys registry.AWSKeys
		opts registry.Options
		want sandbox.Code
	}{
		"another secret":  {keysOf(endpoint, ecrRegion, "other-"+ecrSecret), registry.Options{}, sandbox.CodeUnauthorized},
		"another region":  {keysOf(endpoint, "us-east-1", ecrSecret), registry.Options{}, sandbox.CodeUnauthorized},
		"a region's path": {keysOf("", "x.evil.test/", ecrSecret), registry.Options{}, sandbox.CodeInvalid},
		"no region":       {keysOf(endpoint, "", ecrSecret), registry.Options{}, sandbox.CodeInvalid},
		"a redirect":      {keysOf(elsewhere.URL, ecrRegion, ecrSecret), registry.Options{}, sandbox.CodeUnauthorized},
		"not permitted":   {keysOf(endpoint, ecrRegion, ecrSecret), registry.Options{Permit: nothing}, sandbox.CodeUnavailable},
		"no login":        {keysOf(startECR(t, "!"), ecrRegion, ecrSecret), registry.Options{}, sandbox.CodeUnavailable},
		"no password":     {keysOf(startECR(t, base64.StdEncoding.EncodeToString([]byte("AWS:"))), ecrRegion, ecrSecret), registry.Options{}, sandbox.CodeUnavailable},
		// The login goes to the registry of the account, and to no other host.
		"another registry":   {inAWS("registry.evil.test/app"), registry.Options{}, sandbox.CodeInvalid},
		"a look-alike":       {inAWS("123456789012.dkr.ecr.eu-west-1.amazonaws.com.evil.test/app"), registry.Options{}, sandbox.CodeInvalid},
		"a registry before":  {inAWS("evil.test/123456789012.dkr.ecr.eu-west-1.amazonaws.com/app"), registry.Options{}, sandbox.CodeInvalid},
		"a port":             {inAWS("123456789012.dkr.ecr.eu-west-1.amazonaws.com:5000/app"), registry.Options{}, sandbox.CodeInvalid},
		"a region elsewhere": {inAWS("123456789012.dkr.ecr.us-east-1.amazonaws.com/app"), registry.Options{}, sandbox.CodeInvalid},
		"Docker Hub":         {inAWS("debian:12"), registry.Options{}, sandbox.CodeInvalid},
		"no image":           {inAWS("host/"), registry.Options{}, sandbox.CodeInvalid},
		"a registry that the keys are not for": {
			registry.AWSKeys{AccessKey: ecrKey, Secret: func() string { return ecrSecret }, Region: ecrRegion, Image: "y.test/app", Endpoint: endpoint}, registry.Options{}, sandbox.CodeInvalid,
		},
	} {
		_, _, err := registry.ECRLogin(ctx, test.keys, test.opts)
		if sandbox.CodeOf(err) != test.want {
			t.Errorf("%s: %v", name, err)
		}
		if text := fmt.Sprintf("%v %+v", err, err); strings.Contains(text, ecrSecret) {
			t.Errorf("%s: the error has the secret", name)
		}
	}
}
