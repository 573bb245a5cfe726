package inject

import (
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/atoll-run/atoll/internal/secret"
	"github.com/atoll-run/atoll/sandbox"
)

// unsigned replaces the hash of a body that is not signed.
const unsigned = "UNSIGNED-PAYLOAD"

// hashHeader is the header with the hash of the body.
const hashHeader = "X-Amz-Content-Sha256"

// stripSigV4 removes the client's own signature from headers and query.
func stripSigV4(req *http.Request) {
	for _, name := range []string{"Authorization", "X-Amz-Date", "X-Amz-Security-Token", hashHeader} {
		del(req.Header, name)
	}
	var kept []string
	for part := range strings.SplitSeq(req.URL.RawQuery, "&") {
		key, _, _ := strings.Cut(strings.ToLower(part), "=")
		switch key {
		case "", "x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-expires", "x-amz-signedheaders", "x-amz-signature", "x-amz-security-token":
		default:
			kept = append(kept, part)
		}
	}
	req.URL.RawQuery = strings.Join(kept, "&")
}

// sign signs a request, which must not be changed afterwards.
func sign(req *http.Request, i sandbox.Injection, key secret.Value, values Values, opts Options) error {
	if strings.HasPrefix(req.Header.Get("Content-Encoding"), "aws-chunked") {
		return unusable(i, "the client signs its body in chunks, which is not supported; disable chunked signing in the client")
	}
	hash := opts.PayloadHash
	if hash == "" {
		hash = unsigned
	}
	now := opts.Now
	if now.IsZero() {
		now = time.Now()
	}
	req.Header.Set(hashHeader, hash)
	return signWith(req, i, key, values, hash, now)
}

// signWith signs all headers of the request.
func signWith(req *http.Request, i sandbox.Injection, key secret.Value, values Values, hash string, now time.Time) error {
	credentials := aws.Credentials{AccessKeyID: i.AccessKey, SecretAccessKey: string(key.Reveal())}
	if i.SessionToken != "" {
		token, err := values(i.SessionToken)
		if err != nil {
			return err
		}
		credentials.SessionToken = string(token.Reveal())
	}
	signer := v4.NewSigner(func(o *v4.SignerOptions) {
		o.DisableURIPathEscaping = i.Service == "s3" // S3 keys are escaped once
	})
	if err := signer.SignHTTP(req.Context(), credentials, req, hash, i.Service, i.Region, now); err != nil {
		return unusable(i, "the request cannot be signed")
	}
	return nil
}
