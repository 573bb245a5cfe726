package blob_test

import (
	"bytes"
	"os"
	"slices"
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

// The policy that the guide gives for nodes is enough for the images that they share,
// and for nothing else in the bucket. Errors say what is missing.
func TestS3Rights(t *testing.T) {
	address := strings.Replace(blobtest.S3(t), "?", "/a/b?", 1)
	open := func(below string) blob.Store {
		t.Helper()
		where, err := blob.ParseS3(address)
		if err != nil {
			t.Fatal(err)
		}
		where.Unchecked = true
		s, err := blob.OpenS3(t.Context(), where)
		if err != nil {
			t.Fatal(err)
		}
		return blob.Below(s, below)
	}
	for _, below := range []string{"images", "imagesque", "snapshots", "workspaces"} {
		if err := open(below).Put(t.Context(), "old", strings.NewReader("x"), blob.PutOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	blobtest.Limit(t, address, blobtest.NodePolicy(t, address))

	images := open("images")
	large := bytes.Repeat([]byte("0123456789abcdef"), 40<<16) // more than one part
	for key, content := range map[string][]byte{"blobs/small": []byte("x"), "blobs/large": large} {
		if err := images.Put(t.Context(), key, bytes.NewReader(content), blob.PutOptions{Size: int64(len(content))}); err != nil {
			t.Error(err)
		}
		if info, err := images.Stat(t.Context(), key); err != nil || info.Size != int64(len(content)) {
			t.Errorf("%s: %+v, %v", key, info, err)
		}
	}
	r, err := images.Get(t.Context(), "old", 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	var keys []string
	for info, err := range images.List(t.Context(), "") {
		if err != nil {
			t.Error(err)
		}
		keys = append(keys, info.Key)
	}
	if want := []string{"blobs/large", "blobs/small", "old"}; !slices.Equal(keys, want) {
		t.Errorf("the keys are %q, want %q", keys, want)
	}
	if _, err := images.Get(t.Context(), "missing", 0, -1); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("reading what is missing: %v", err)
	}
	if _, err := images.Stat(t.Context(), "missing"); sandbox.CodeOf(err) != sandbox.CodeNotFound {
		t.Errorf("looking for what is missing: %v", err)
	}

	refused := func(what, right string, err error) {
		t.Helper()
		if sandbox.CodeOf(err) != sandbox.CodeDenied || !strings.Contains(err.Error(), right) || !strings.Contains(err.Error(), "a/b/") {
			t.Errorf("%s: %v, want denied, with %s and the key", what, err, right)
		}
	}
	refused("removing an image", "s3:DeleteObject", images.Delete(t.Context(), "old"))
	for _, below := range []string{"snapshots", "workspaces", "imagesque"} {
		s := open(below)
		_, err := s.Get(t.Context(), "old", 0, -1)
		refused("reading "+below, "s3:GetObject", err)
		_, err = s.Stat(t.Context(), "old")
		refused("looking at "+below, "s3:GetObject", err)
		refused("writing "+below, "s3:PutObject", s.Put(t.Context(), "new", strings.NewReader("x"), blob.PutOptions{}))
		refused("overwriting "+below, "s3:PutObject", s.Put(t.Context(), "old", bytes.NewReader(large), blob.PutOptions{}))
		refused("removing "+below, "s3:DeleteObject", s.Delete(t.Context(), "old"))
		for _, err = range s.List(t.Context(), "") {
			break
		}
		refused("listing "+below, "s3:ListBucket", err)
	}
	if _, err := blob.Open(t.Context(), address); sandbox.CodeOf(err) != sandbox.CodeDenied || !strings.Contains(err.Error(), "s3:ListBucket") {
		t.Errorf("opening the whole of it: %v", err)
	}
}

// A region that is not the service's is an error that says so. MinIO takes any.
func TestS3Region(t *testing.T) {
	address := strings.Replace(blobtest.S3(t), "region=us-east-1", "region=eu-9", 1)
	where, err := blob.ParseS3(address)
	if err != nil {
		t.Fatal(err)
	}
	where.Unchecked = true
	s, err := blob.OpenS3(t.Context(), where)
	if err != nil {
		t.Fatal(err)
	}
	_, opening := blob.Open(t.Context(), address)
	for what, err := range map[string]error{"opening": opening, "writing": s.Put(t.Context(), "key", strings.NewReader("x"), blob.PutOptions{})} {
		if os.Getenv("ATOLL_S3") == "minio" {
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		} else if sandbox.CodeOf(err) != sandbox.CodeDenied || !strings.Contains(err.Error(), "region") {
			t.Errorf("%s: %v, want denied, because of the region", what, err)
		}
	}
}
