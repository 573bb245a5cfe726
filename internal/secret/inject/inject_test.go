package inject

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/policy"
	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/sandbox"
)

const canary = "canary-value-0451"

// values contains secrets, and records which were requested.
func values(used *[]string) Values {
	known := map[string]string{"token": canary, "key": "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "session": "the-session-token", "broken": "line\r\nInjected: yes"}
	return func(name string) (secret.Value, error) {
		v, ok := known[name]
		if !ok {
			return secret.Value{}, &sandbox.Error{Code: sandbox.CodeNotFound, Subject: name}
		}
		if used != nil {
			*used = append(*used, name)
		}
		return secret.NewValue([]byte(v)), nil
	}
}

func request(t *testing.T, url string, header ...string) *http.Request {
	t.Helper()
	req := httptest.NewRequest(http.MethodPost, url, strings.NewReader("body"))
	for i := 0; i < len(header); i += 2 {
		req.Header[header[i]] = append(req.Header[header[i]], header[i+1])
	}
	return req
}

func TestApply(t *testing.T) {
	sent := []string{"Authorization", "Bearer mine", "authorization", "Bearer mine", "X-Api-Key", "mine", "x-api-key", "mine", "Accept", "text/plain"}
	for _, tt := range []struct {
		in     sandbox.Injection
		header string
		want   string
		query  string
	}{
		{sandbox.Injection{Secret: "token", Mode: sandbox.InjectHeader, Name: "X-Api-Key"}, "X-Api-Key", canary, "a=1&key=mine&b=%zz&k%65y=mine"},
		{sandbox.Injection{Secret: "token", Mode: sandbox.InjectHeader, Name: "x-api-key", Format: "v1 {}; {}"}, "X-Api-Key", "v1 " + canary + "; " + canary, "a=1&key=mine&b=%zz&k%65y=mine"},
		{sandbox.Injection{Secret: "token", Mode: sandbox.InjectBearer}, "Authorization", "Bearer " + canary, "a=1&key=mine&b=%zz&k%65y=mine"},
		{sandbox.Injection{Secret: "token", Mode: sandbox.InjectBasic, Username: "me"}, "Authorization", "Basic bWU6Y2FuYXJ5LXZhbHVlLTA0NTE=", "a=1&key=mine&b=%zz&k%65y=mine"},
		{sandbox.Injection{Secret: "token", Mode: sandbox.InjectQuery, Name: "key"}, "Accept", "text/plain", "a=1&b=%zz&key=" + canary},
		{sandbox.Injection{Mode: sandbox.InjectParts, Name: "x-api-key", Parts: []sandbox.InjectPart{
			{Text: "{} "}, {Secret: "token"}, {Text: ":"}, {Secret: "session"},
		}}, "X-Api-Key", "{} " + canary + ":the-session-token", "a=1&key=mine&b=%zz&k%65y=mine"},
		{sandbox.Injection{Mode: sandbox.InjectParts, Name: "X-Api-Key", Parts: []sandbox.InjectPart{{Text: "no secret"}}}, "X-Api-Key", "no secret", "a=1&key=mine&b=%zz&k%65y=mine"},
	} {
		req := request(t, "https://api.example.com/x?a=1&key=mine&b=1&k%65y=mine", sent...)
		req.URL.RawQuery = "a=1&key=mine&b=%zz&k%65y=mine" // what no client library of Go would send
		if err := Apply(req, []sandbox.Injection{tt.in}, values(nil), Options{}); err != nil {
			t.Fatal(err)
		}
		var got []string
		for name, all := range req.Header {
			if strings.EqualFold(name, tt.header) {
				got = append(got, all...)
			}
		}
		if !slices.Equal(got, []string{tt.want}) || req.URL.RawQuery != tt.query {
			t.Errorf("%+v: %q, ?%s", tt.in, got, req.URL.RawQuery)
		}
	}
	for _, in := range []sandbox.Injection{
		{Secret: "broken", Mode: sandbox.InjectBearer},
		{Secret: "broken", Mode: sandbox.InjectHeader, Name: "X"},
		{Secret: "missing", Mode: sandbox.InjectBearer},
		{Secret: "token", Mode: "other"},
		{Mode: sandbox.InjectParts, Name: "X", Parts: []sandbox.InjectPart{{Secret: "token"}, {Secret: "broken"}}},
		{Mode: sandbox.InjectParts, Name: "X", Parts: []sandbox.InjectPart{{Secret: "token"}, {Secret: "missing"}}},
	} {
		req := request(t, "https://api.example.com/", sent...)
		err := Apply(req, []sandbox.Injection{in}, values(nil), Options{})
		if err == nil || strings.Contains(err.Error(), "Injected") || strings.Contains(err.Error(), canary) {
			t.Errorf("%+v: %v", in, err)
		}
		if len(req.Header.Values("Injected")) != 0 || strings.Contains(req.Header.Get("X"), "yes") {
			t.Errorf("%+v: %v", in, req.Header)
		}
	}
}

// get-vanilla of the test suite that AWS published for this signature: the key,
// the request, and the signature that a service expects.
func TestSigV4Vector(t *testing.T) {
	req := httptest.NewRequest(http.MethodGet, "https://example.amazonaws.com/", nil)
	in := sandbox.Injection{Secret: "key", Mode: sandbox.InjectSigV4, AccessKey: "AKIDEXAMPLE", Region: "us-east-1", Service: "service"}
	if err := sigV4Vector(req, in, time.Date(2015, 8, 30, 12, 36, 0, 0, time.UTC)); err != nil {
		t.Fatal(err)
	}
	const want = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/service/aws4_request, SignedHeaders=host;x-amz-date, " +
		"Signature=5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"
	if got := req.Header.Get("Authorization"); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// sigV4Vector signs as Apply does, but for the header with the hash of the
// body, which we always send and that vector does not have.
func sigV4Vector(req *http.Request, in sandbox.Injection, at time.Time) error {
	if err := Apply(req, []sandbox.Injection{in}, values(nil), Options{Now: at, PayloadHash: emptyHash}); err != nil {
		return err
	}
	stripSigV4(req)
	return signWith(req, in, secret.NewValue([]byte("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")), values(nil), emptyHash, at)
}

const emptyHash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

// The signature matches the received request. The canonical request is built
// here by the published rules, not by the signing library.
func TestSigV4Recomputed(t *testing.T) {
	at := time.Date(2015, 8, 30, 12, 36, 0, 0, time.UTC)
	for _, tt := range []struct{ service, target, path, query string }{
		{"iam", "https://iam.amazonaws.com/?Version=2010-05-08&Action=ListUsers", "/", "Action=ListUsers&Version=2010-05-08"},
		{"service", "https://example.amazonaws.com/a%20b/c", "/a%2520b/c", ""},
		{"s3", "https://bucket.s3.amazonaws.com/a%20b/c?x=1", "/a%20b/c", "x=1"},
	} {
		req := httptest.NewRequest(http.MethodGet, tt.target, nil)
		in := sandbox.Injection{Secret: "key", Mode: sandbox.InjectSigV4, AccessKey: "AKIDEXAMPLE", Region: "us-east-1", Service: tt.service}
		if err := Apply(req, []sandbox.Injection{in}, values(nil), Options{Now: at}); err != nil {
			t.Fatal(err)
		}
		const signed = "host;x-amz-content-sha256;x-amz-date"
		canonical := strings.Join([]string{
			"GET", tt.path, tt.query, "host:" + req.Host, "x-amz-content-sha256:" + unsigned, "x-amz-date:20150830T123600Z", "", signed, unsigned,
		}, "\n")
		scope := "20150830/us-east-1/" + tt.service + "/aws4_request"
		key := []byte("AWS4wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")
		for part := range strings.SplitSeq(scope, "/") {
			key = mac(key, part)
		}
		sum := sha256.Sum256([]byte(canonical))
		signature := hex.EncodeToString(mac(key, "AWS4-HMAC-SHA256\n20150830T123600Z\n"+scope+"\n"+hex.EncodeToString(sum[:])))
		if got := req.Header.Get("Authorization"); !strings.HasSuffix(got, "Signature="+signature) {
			t.Errorf("%s: %s, want %s", tt.target, got, signature)
		}
	}
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// A signature of the client is replaced completely.
func TestSigV4(t *testing.T) {
	in := sandbox.Injection{Secret: "key", Mode: sandbox.InjectSigV4, AccessKey: "AKIDEXAMPLE", Region: "us-east-1", Service: "iam"}
	at := time.Date(2015, 8, 30, 12, 36, 0, 0, time.UTC)
	sign := func(change func(*http.Request, *sandbox.Injection)) (*http.Request, error) {
		req := httptest.NewRequest(http.MethodGet, "https://iam.amazonaws.com/?Action=ListUsers&Version=2010-05-08", nil)
		req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=MINE/x, Signature=mine")
		req.Header.Set("X-Amz-Security-Token", "mine")
		i := in
		change(req, &i)
		return req, Apply(req, []sandbox.Injection{i}, values(nil), Options{Now: at})
	}
	plain, err := sign(func(*http.Request, *sandbox.Injection) {})
	auth := plain.Header.Get("Authorization")
	if err != nil || !strings.HasPrefix(auth, "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/iam/aws4_request, SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature=") {
		t.Fatalf("%q %v", auth, err)
	}
	if plain.Header.Get("X-Amz-Security-Token") != "" || plain.Header.Get(hashHeader) != unsigned || plain.Header.Get("X-Amz-Date") != "20150830T123600Z" {
		t.Errorf("%v", plain.Header)
	}
	again, _ := sign(func(r *http.Request, _ *sandbox.Injection) {
		r.URL.RawQuery += "&X-Amz-Signature=mine&x-amz-credential=mine"
	})
	if again.Header.Get("Authorization") != auth || strings.Contains(again.URL.RawQuery, "mine") {
		t.Errorf("what the client signed stays: %s", again.URL.RawQuery)
	}
	other, _ := sign(func(_ *http.Request, i *sandbox.Injection) { i.Secret = "token" })
	if other.Header.Get("Authorization") == auth {
		t.Error("another key gives the same signature")
	}
	token, err := sign(func(_ *http.Request, i *sandbox.Injection) { i.SessionToken = "session" })
	if err != nil || token.Header.Get("X-Amz-Security-Token") != "the-session-token" {
		t.Errorf("%v %v", token.Header, err)
	}
	if _, err := sign(func(r *http.Request, _ *sandbox.Injection) { r.Header.Set("Content-Encoding", "aws-chunked") }); err == nil {
		t.Error("a body that is signed in pieces is signed")
	}
}

const placeholder = "ghp_thisIsNotTheTokenButLooksLikeIt00000"

func swapFor(t *testing.T, in ...string) []policy.SwapFor {
	t.Helper()
	places, err := policy.ParsePlaces(in)
	if err != nil {
		t.Fatal(err)
	}
	return []policy.SwapFor{{Secret: "token", Placeholder: placeholder, Places: places}}
}

func TestSwap(t *testing.T) {
	s := NewSwapper(map[string]string{placeholder: "token", "anotherPlaceholder000000000000000000000": "key"})
	basic := func(req *http.Request) { req.SetBasicAuth("me", placeholder) }
	header := func(name string) func(*http.Request) {
		return func(req *http.Request) { req.Header.Set(name, "token "+placeholder) }
	}
	query := func(name string) func(*http.Request) {
		return func(req *http.Request) { req.URL.RawQuery = "x=%2F&" + name + "=" + placeholder }
	}
	path := func(req *http.Request) { req.URL.Path = "/" + placeholder }
	body := func(req *http.Request) {
		req.Body = io.NopCloser(iotestOneByte{strings.NewReader("{" + placeholder + "}")})
	}
	for _, tt := range []struct {
		name  string
		in    []string
		put   func(*http.Request)
		works bool
	}{
		{"header by default", nil, header("Authorization"), true},
		{"any header by default", nil, header("X-Token"), true},
		{"basic by default", nil, basic, true},
		{"a header that is named", []string{"header:x-token"}, header("X-Token"), true},
		{"a header that is not", []string{"header:x-token"}, header("X-Other"), false},
		{"basic where only a header is", []string{"header"}, basic, false},
		{"query by default", nil, query("k"), false},
		{"query", []string{"query"}, query("k"), true},
		{"a parameter that is named", []string{"query:k"}, query("k"), true},
		{"one that is not", []string{"query:k"}, query("j"), false},
		{"path", []string{"header", "query", "body", "basic"}, path, false},
		{"body by default", nil, body, false},
		{"body", []string{"body"}, body, true},
		{"another one's", nil, func(req *http.Request) { req.Header.Set("X", "anotherPlaceholder000000000000000000000") }, false},
		{"base64 in a header that is not basic", []string{"basic"}, func(req *http.Request) { basic(req); req.Header.Set("X", req.Header.Get("Authorization")) }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req := request(t, "https://api.example.com/")
			tt.put(req)
			var used []string
			err := s.Swap(req, swapFor(t, tt.in...), values(&used))
			sent, berr := io.ReadAll(req.Body)
			user, password, _ := req.BasicAuth()
			all := strings.Join([]string{req.URL.String(), user, password, string(sent)}, " ")
			for _, v := range req.Header {
				all += strings.Join(v, " ")
			}
			stray := new(Stray)
			switch {
			case tt.works && (err != nil || berr != nil || !strings.Contains(all, canary) || strings.Contains(all, placeholder) || !slices.Equal(used, []string{"token"})):
				t.Errorf("%v %v %v: %s", err, berr, used, all)
			case !tt.works && (!errors.As(errors.Join(err, berr), &stray) || stray.Error() == "" || strings.Contains(stray.Error(), placeholder)):
				t.Errorf("not stopped: %v %v", err, berr)
			case !tt.works && strings.Contains(string(sent), placeholder[:20]):
				t.Errorf("sent: %q", sent)
			}
		})
	}
	req := request(t, "https://api.example.com/")
	if err := s.Swap(req, nil, values(nil)); err != nil {
		t.Error(err)
	}
	if b, err := io.ReadAll(req.Body); err != nil || string(b) != "body" || req.ContentLength != 4 {
		t.Errorf("%q %v %d", b, err, req.ContentLength)
	}
}

// iotestOneByte returns one byte at a time.
type iotestOneByte struct{ r io.Reader }

func (o iotestOneByte) Read(p []byte) (int, error) { return o.r.Read(p[:min(1, len(p))]) }
