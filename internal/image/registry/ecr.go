package registry

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/google/go-containerregistry/pkg/name"

	"github.com/atoll-run/atoll/sandbox"
)

// AWSKeys are AWS credentials. Secret is a function, so that it cannot appear
// in logs or records.
type AWSKeys struct {
	AccessKey string
	Secret    func() string
	Region    string
	// Image is a reference to an image in the registry that the login is for.
	Image string
	// Endpoint is the ECR endpoint of the region; empty: the AWS default.
	Endpoint string
}

// awsRegion matches region names, which become part of a host name.
var awsRegion = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`) })

// ECRLogin exchanges AWS keys for a user name and password of the account's
// registry, which are valid for several hours. The request passes the same
// guard as requests to registries.
func ECRLogin(ctx context.Context, keys AWSKeys, opts Options) (username, password string, err error) {
	if !awsRegion().MatchString(keys.Region) {
		return "", "", &sandbox.Error{Code: sandbox.CodeInvalid, Op: "image.pull", Subject: "region", Message: fmt.Sprintf("%.40q is not a region of AWS", keys.Region)}
	}
	at, err := keys.registry()
	if err != nil {
		return "", "", err
	}
	host := "api.ecr." + keys.Region + ".amazonaws.com"
	if strings.HasPrefix(keys.Region, "cn-") {
		host += ".cn"
	}
	endpoint, err := url.Parse(cmp.Or(keys.Endpoint, "https://"+host))
	if err != nil {
		return "", "", &sandbox.Error{Code: sandbox.CodeInvalid, Op: "image.pull", Subject: "AWS_ENDPOINT_URL_ECR", Message: "is not an address"}
	}
	opts.StallTimeout = cmp.Or(opts.StallTimeout, 30*time.Second)
	if opts.Transport == nil {
		opts.Transport = http.DefaultTransport
	}
	if opts.Permit != nil {
		opts.Transport = newOutward(opts.Transport, opts.Permit)
	}
	req, err := authorizationRequest(ctx, endpoint, &keys)
	if err != nil {
		return "", "", err
	}
	client := &http.Client{
		Transport:     newGuard(endpoint.Host, opts),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // a signature is for one host
	}
	resp, err := client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return "", "", ctx.Err()
		}
		e := &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "image.pull", Subject: endpoint.Host, Message: "the registry login failed", Hint: "check the region"}
		if opts.Permit == nil { // other callers must not learn what is behind an address
			e.Message += ": " + reason(err)
		}
		return "", "", e
	}
	defer resp.Body.Close()
	return authorizationOf(endpoint.Host, at, resp)
}

// ecrHost is what AWS calls the registry of an account, behind the account's number.
var ecrHost = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[0-9]{12}\.dkr\.ecr(-fips)?\.([a-z0-9-]+)\.amazonaws\.com(\.cn)?$`)
})

// registry returns the host of the image. Where AWS has its own endpoint, another
// one than the region's registry is refused: it would get the login.
func (k *AWSKeys) registry() (string, error) {
	ref, err := name.ParseReference(strings.TrimPrefix(k.Image, "docker://"))
	if err != nil {
		return "", &sandbox.Error{Code: sandbox.CodeInvalid, Op: "image.pull", Subject: "image", Message: fmt.Sprintf("%.200q is not an image of a registry", k.Image)}
	}
	host := ref.Context().RegistryStr()
	if m := ecrHost().FindStringSubmatch(host); k.Endpoint == "" && (m == nil || m[2] != k.Region) {
		return "", &sandbox.Error{
			Code: sandbox.CodeInvalid, Op: "image.pull", Subject: host, Message: "is not the registry of an account of AWS in " + k.Region,
			Hint: "name the image as ACCOUNT.dkr.ecr." + k.Region + ".amazonaws.com/REPOSITORY:TAG",
		}
	}
	return host, nil
}

// authorizationRequest returns a request signed with the keys. It does not
// contain the secret.
func authorizationRequest(ctx context.Context, endpoint *url.URL, keys *AWSKeys) (*http.Request, error) {
	body := []byte("{}")
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint.JoinPath("/").String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/x-amz-json-1.1")
	req.Header.Set("X-Amz-Target", "AmazonEC2ContainerRegistry_V20150921.GetAuthorizationToken")
	sum := sha256.Sum256(body)
	credentials := aws.Credentials{AccessKeyID: keys.AccessKey, SecretAccessKey: keys.Secret()}
	return req, v4.NewSigner().SignHTTP(ctx, credentials, req, hex.EncodeToString(sum[:]), "ecr", keys.Region, time.Now())
}

// authorizationOf parses the response, which must be for the registry.
func authorizationOf(host, registry string, resp *http.Response) (username, password string, err error) {
	e := &sandbox.Error{Code: sandbox.CodeUnavailable, Op: "image.pull", Subject: host}
	switch {
	case resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests:
		e.Message = fmt.Sprintf("answered with status %d", resp.StatusCode)
		return "", "", e
	case resp.StatusCode != http.StatusOK:
		e.Code, e.Message = sandbox.CodeUnauthorized, "does not accept the keys"
		e.Hint = "check the keys, the region, and that they allow ecr:GetAuthorizationToken"
		return "", "", e
	}
	var out struct {
		AuthorizationData []struct {
			AuthorizationToken string `json:"authorizationToken"`
			ProxyEndpoint      string `json:"proxyEndpoint"`
		} `json:"authorizationData"`
	}
	err = json.NewDecoder(resp.Body).Decode(&out)
	if err == nil && len(out.AuthorizationData) == 0 {
		err = errors.New("no data")
	}
	var text []byte
	if err == nil {
		text, err = base64.StdEncoding.DecodeString(out.AuthorizationData[0].AuthorizationToken)
	}
	username, password, ok := strings.Cut(string(text), ":")
	if err != nil || !ok || username == "" || password == "" {
		e.Message = "answered without a login" // the error must not contain more
		return "", "", e
	}
	if of := out.AuthorizationData[0].ProxyEndpoint; of != "" && strings.TrimPrefix(of, "https://") != registry {
		e.Code, e.Subject, e.Message = sandbox.CodeInvalid, registry, "is not the registry that the keys are for"
		return "", "", e
	}
	return username, password, nil
}
