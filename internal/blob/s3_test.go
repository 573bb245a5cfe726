package blob_test

import (
	"strings"
	"testing"

	"github.com/atoll-run/atoll/internal/blob"
	"github.com/atoll-run/atoll/internal/blob/blobtest"
	"github.com/atoll-run/atoll/sandbox"
)

func TestS3(t *testing.T) {
	blobtest.Run(t, func(t *testing.T) blob.Store {
		s, err := blob.Open(t.Context(), blobtest.S3(t))
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
}

func TestS3Prefix(t *testing.T) {
	address := blobtest.S3(t)
	inside, err := blob.Open(t.Context(), strings.Replace(address, "?", "/some/prefix?", 1))
	if err != nil {
		t.Fatal(err)
	}
	if err := inside.Put(t.Context(), "key", strings.NewReader("x"), blob.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	whole, err := blob.Open(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := whole.Stat(t.Context(), "some/prefix/key"); err != nil {
		t.Error(err)
	}
}

func TestS3Refusals(t *testing.T) {
	address := blobtest.S3(t)
	if _, err := blob.Open(t.Context(), strings.Replace(address, "s3://", "s3://not-", 1)); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("a bucket that is missing: %v", err)
	}
	t.Setenv("AWS_SECRET_ACCESS_KEY", "canary-3f1c")
	_, err := blob.Open(t.Context(), address)
	if sandbox.CodeOf(err) != sandbox.CodeDenied {
		t.Errorf("a wrong key: %v", err)
	}
	if strings.Contains(err.Error(), "canary") {
		t.Errorf("the error contains the key: %v", err)
	}
	if _, err := blob.Open(t.Context(), "s3://bucket?region=r&endpoint=http://127.0.0.1:1"); sandbox.CodeOf(err) != sandbox.CodeUnavailable {
		t.Errorf("nobody listens: %v", err)
	}
}
