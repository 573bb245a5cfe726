package blob

import (
	"bytes"
	"context"
	"errors"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/atoll-run/atoll/sandbox"
)

// S3 is the location of a bucket.
type S3 struct {
	Bucket string
	Prefix string // keys begin with it and a slash; may be empty
	// Endpoint is the service's URL; empty: AWS. Use http only on this machine or
	// a private network.
	Endpoint string
	Region   string // empty: requested from the service

	// Credentials authenticate requests; nil: found as by AWS's own tools.
	Credentials *credentials.Credentials
	// Tries is the number of attempts per request; zero: the client library's
	// default.
	Tries int
	// Unchecked opens the store without a request. Then a service that cannot be
	// reached, and a missing bucket, are errors when blobs are read and written.
	Unchecked bool
}

// partSize is the memory buffer, in bytes, for a blob of unknown size.
const partSize = MaxIfAbsent

// bucket is a Store in an S3 bucket.
type bucket struct {
	client *minio.Client
	name   string
}

// ParseS3 parses the address of a bucket, as for [Open].
func ParseS3(address string) (S3, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "s3" || u.Host == "" {
		// Do not repeat the address: it may contain a secret.
		return S3{}, &sandbox.Error{
			Code: sandbox.CodeInvalid, Op: "blob.open", Message: "not the address of a blob store",
			Hint: "use a directory, or s3://BUCKET/PREFIX?endpoint=URL&region=NAME",
		}
	}
	if u.User != nil {
		return S3{}, &sandbox.Error{
			Code: sandbox.CodeInvalid, Op: "blob.open", Message: "an address must not contain credentials",
			Hint: "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or use a credentials file",
		}
	}
	return S3{
		Bucket: u.Host, Prefix: strings.Trim(u.Path, "/"), Endpoint: u.Query().Get("endpoint"), Region: u.Query().Get("region"),
	}, nil
}

// LocalCredentials finds credentials on this machine as AWS's own tools do: in
// the environment and in the shared credentials file.
func LocalCredentials() *credentials.Credentials {
	return credentials.NewChainCredentials([]credentials.Provider{&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}})
}

// Dial returns a client of the bucket's service. It sends no requests.
func Dial(where S3) (*minio.Client, error) {
	host, secure := "s3.amazonaws.com", true
	if where.Endpoint != "" {
		u, err := url.Parse(where.Endpoint)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return nil, fail(sandbox.CodeInvalid, "blob.open", "endpoint", "not an http or https URL", nil)
		}
		host, secure = u.Host, u.Scheme == "https"
	}
	if where.Credentials == nil {
		where.Credentials = credentials.NewChainCredentials([]credentials.Provider{
			&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}, &credentials.IAM{},
		})
	}
	transport, err := minio.DefaultTransport(secure)
	if err != nil {
		return nil, fail(sandbox.CodeInvalid, "blob.open", "endpoint", "not usable", err)
	}
	client, err := minio.New(host, &minio.Options{
		Creds: where.Credentials, Secure: secure, Region: where.Region, MaxRetries: where.Tries, Transport: watchful{transport},
	})
	if err != nil {
		return nil, fail(sandbox.CodeInvalid, "blob.open", "endpoint", "not usable", err)
	}
	return client, nil
}

// OpenS3 opens a store in an existing bucket.
func OpenS3(ctx context.Context, where S3) (Store, error) {
	client, err := Dial(where)
	if err != nil {
		return nil, err
	}
	if !where.Unchecked {
		found, err := client.BucketExists(ctx, where.Bucket)
		if err != nil {
			return nil, s3Error("blob.open", where.Bucket, err)
		}
		if !found {
			return nil, &sandbox.Error{
				Code: sandbox.CodeNotFound, Op: "blob.open", Subject: where.Bucket, Message: "no such bucket",
				Hint: "create the bucket first; Atoll does not create it",
			}
		}
	}
	b := &bucket{client: client, name: where.Bucket}
	if where.Prefix == "" {
		return b, nil
	}
	if err := ValidateKey(where.Prefix); err != nil {
		return nil, err
	}
	return Below(b, where.Prefix), nil
}

// Put writes a blob; see [Store].
func (b *bucket) Put(ctx context.Context, key string, r io.Reader, opts PutOptions) error {
	if err := ValidateKey(key); err != nil {
		return err
	}
	source := &remembering{r: limited(r, opts)}
	size, body, err := measure(source, opts)
	if err != nil {
		return err
	}
	how := minio.PutObjectOptions{ContentType: "application/octet-stream", PartSize: partSize}
	if opts.IfAbsent {
		how.SetMatchETagExcept("*")
	}
	_, err = b.client.PutObject(ctx, b.name, key, body, size, how)
	if source.err != nil {
		return source.err
	}
	return s3Error("blob.put", key, err)
}

// measure returns the number of bytes to write, or -1 if they are more than one
// part. A blob of one part is sent as a single request; the client library
// supports conditions only for those.
func measure(source io.Reader, opts PutOptions) (int64, io.Reader, error) {
	if opts.Size > 0 && !opts.IfAbsent {
		return opts.Size, source, nil
	}
	var first bytes.Buffer
	n, err := io.Copy(&first, io.LimitReader(source, partSize))
	switch {
	case err != nil:
		return 0, nil, err
	case n < partSize:
		return n, bytes.NewReader(first.Bytes()), nil
	case opts.IfAbsent:
		if more, _ := io.CopyN(io.Discard, source, 1); more > 0 {
			return 0, nil, errTooLarge()
		}
		return n, bytes.NewReader(first.Bytes()), nil
	}
	return -1, io.MultiReader(&first, source), nil
}

// remembering stores the error of a reader, which the client wraps in a way
// that hides it.
type remembering struct {
	r   io.Reader
	err error
}

func (r *remembering) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	if err != nil && err != io.EOF {
		r.err = err
	}
	return n, err
}

// Get reads a blob; see [Store].
func (b *bucket) Get(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	if err := ValidateKey(key); err != nil {
		return nil, err
	}
	if length == 0 {
		_, err := b.Stat(ctx, key)
		return http.NoBody, err
	}
	var opts minio.GetObjectOptions
	if offset > 0 || length > 0 {
		end := int64(0) // to the end
		if length > 0 {
			end = offset + length - 1
		}
		if err := setRange(&opts, offset, end); err != nil {
			return nil, fail(sandbox.CodeInvalid, "blob.get", key, "not a usable range", err)
		}
	}
	body, _, _, err := minio.Core{Client: b.client}.GetObject(ctx, b.name, key, opts)
	if minio.ToErrorResponse(err).StatusCode == http.StatusRequestedRangeNotSatisfiable {
		return http.NoBody, nil
	}
	if err != nil {
		return nil, s3Error("blob.get", key, err)
	}
	if length > 0 { // a service without support for ranges sends the whole blob
		return &bounded{io.LimitReader(body, length), body}, nil
	}
	return body, nil
}

// bounded is the beginning of a body.
type bounded struct {
	io.Reader
	io.Closer
}

// setRange works around the library's treatment of "0 to 0" as the whole
// object.
func setRange(opts *minio.GetObjectOptions, offset, end int64) error {
	if offset == 0 && end == 0 {
		opts.Set("Range", "bytes=0-0")
		return nil
	}
	return opts.SetRange(offset, end)
}

// Stat describes a blob; see [Store].
func (b *bucket) Stat(ctx context.Context, key string) (Info, error) {
	if err := ValidateKey(key); err != nil {
		return Info{}, err
	}
	o, err := b.client.StatObject(ctx, b.name, key, minio.StatObjectOptions{})
	if err != nil {
		return Info{}, s3Error("blob.stat", key, err)
	}
	return Info{Key: key, Size: o.Size, Modified: o.LastModified}, nil
}

// List yields blobs; see [Store]. It fails if the service's list makes no
// progress or is not in order.
func (b *bucket) List(ctx context.Context, prefix string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		l := &listing{}
		ctx, l.stop = context.WithCancelCause(context.WithValue(ctx, listingKey{}, l))
		defer l.stop(nil)
		last := ""
		for o := range b.client.ListObjectsIter(ctx, b.name, minio.ListObjectsOptions{Prefix: prefix, Recursive: true}) {
			if o.Err != nil {
				yield(Info{}, l.failure(ctx, prefix, o.Err))
				return
			}
			if o.Key <= last {
				yield(Info{}, l.failure(ctx, prefix, errNoProgress))
				return
			}
			last = o.Key
			l.idle.Store(0)
			if ValidateKey(o.Key) != nil || !strings.HasPrefix(o.Key, prefix) {
				continue // not a valid key
			}
			if !yield(Info{Key: o.Key, Size: o.Size, Modified: o.LastModified}, nil) {
				return
			}
		}
		if cause := context.Cause(ctx); cause != nil {
			yield(Info{}, l.failure(ctx, prefix, cause))
		}
	}
}

// Delete removes a blob; see [Store].
func (b *bucket) Delete(ctx context.Context, key string) error {
	if err := ValidateKey(key); err != nil {
		return err
	}
	err := s3Error("blob.delete", key, b.client.RemoveObject(ctx, b.name, key, minio.RemoveObjectOptions{}))
	if sandbox.CodeOf(err) == sandbox.CodeNotFound {
		return nil
	}
	return err
}

// s3Error classifies an error of the client. The service's message is only
// logged, because it may repeat parts of the request.
func s3Error(op, key string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fail(sandbox.CodeOf(err), op, key, "", err)
	}
	answer := minio.ToErrorResponse(err)
	if answer.Code == minio.AuthorizationHeaderMalformed || answer.Code == "400 Bad Request" { // which is all that HEAD says
		return &sandbox.Error{
			Code: sandbox.CodeDenied, Op: op, Subject: key, Cause: err, Message: "the S3 service refuses the request, most often because of the region (" + answer.Code + ")",
			Hint: "set region= in the address to the region of the bucket",
		}
	}
	switch answer.StatusCode {
	case http.StatusNotFound:
		return fail(sandbox.CodeNotFound, op, key, "no such "+strings.TrimPrefix(answer.Code, "NoSuch"), err)
	case http.StatusPreconditionFailed, http.StatusConflict:
		return fail(sandbox.CodeAlreadyExists, op, key, "already exists", err)
	case http.StatusForbidden, http.StatusUnauthorized:
		return refused(op, key, answer.Code, err)
	case http.StatusInsufficientStorage:
		return fail(sandbox.CodeExhausted, op, key, "the S3 service is full", err)
	}
	return fail(sandbox.CodeUnavailable, op, key, "the S3 service cannot be used", err)
}

// rights are what a key needs for an operation.
var rights = map[string]string{
	"blob.open": "s3:ListBucket", "blob.list": "s3:ListBucket", "blob.get": "s3:GetObject", "blob.stat": "s3:GetObject",
	"blob.put": "s3:PutObject", "blob.delete": "s3:DeleteObject",
}

// refused is the error for credentials that are wrong, or may not do what was asked
// for.
func refused(op, key, code string, cause error) error {
	e := &sandbox.Error{
		Code: sandbox.CodeDenied, Op: op, Subject: key, Cause: cause, Message: "the S3 service refuses (" + code + ")",
		Hint: "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and what that key may do with the bucket",
	}
	right := rights[op]
	if code != "AccessDenied" || right == "" {
		return e
	}
	e.Message = "the S3 service refuses " + right + " (AccessDenied)"
	e.Hint = "allow the key in AWS_ACCESS_KEY_ID " + right + " for it"
	if right == "s3:GetObject" {
		e.Hint += "; without s3:ListBucket, services also refuse to read what does not exist"
	}
	return e
}
