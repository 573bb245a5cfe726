package blob_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atoll-run/atoll/internal/blob"
	"github.com/atoll-run/atoll/sandbox"
)

const (
	canaryKey    = "canary-access-key"
	canarySecret = "canary-of-the-bucket"
)

// hostileBucket opens a store on a server that answers all but the first request
// as it likes.
func hostileBucket(t *testing.T, h http.HandlerFunc) blob.Store {
	t.Helper()
	t.Setenv("AWS_ACCESS_KEY_ID", canaryKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", canarySecret)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodHead && strings.Trim(r.URL.Path, "/") == "bucket" {
			return
		}
		h(w, r)
	}))
	t.Cleanup(s.Close)
	t.Cleanup(s.CloseClientConnections)
	store, err := blob.Open(t.Context(), "s3://bucket?region=us-east-1&endpoint="+s.URL)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// page is an answer to a request for a list.
func page(next string, keys ...string) string {
	var b strings.Builder
	b.WriteString(`<?xml version="1.0"?><ListBucketResult><Name>bucket</Name>`)
	if next != "" {
		fmt.Fprintf(&b, "<IsTruncated>true</IsTruncated><NextContinuationToken>%s</NextContinuationToken>", next)
	}
	for _, k := range keys {
		fmt.Fprintf(&b, "<Contents><Key>%s</Key><Size>1</Size></Contents>", k)
	}
	return b.String() + "</ListBucketResult>"
}

// list reads a whole list, within a time.
func list(t *testing.T, s blob.Store, prefix string) (keys []string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for info, err := range s.List(ctx, prefix) {
		if err != nil {
			return keys, err
		}
		keys = append(keys, info.Key)
	}
	return keys, nil
}

// TestAttackHostileLists has a bucket answer a request for a list without end, in
// one page or in many, and with names that are none.
func TestAttackHostileLists(t *testing.T) {
	var requests atomic.Int64
	for name, h := range map[string]http.HandlerFunc{
		"the same page again": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, page("more", "w/a", "w/b")) },
		"empty pages":         func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, page("more")) },
		"new tokens": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, page(fmt.Sprint("t", requests.Load()), "w/a"))
		},
		"pages that go back": func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, page("more", map[bool]string{true: "w/z", false: "w/a"}[r.URL.Query().Get("continuation-token") == ""]))
		},
		"one page without end": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `<ListBucketResult>`)
			for range 1 << 20 {
				if _, err := io.WriteString(w, strings.Repeat("<Contents><Key>w/a</Key></Contents>", 100)); err != nil {
					return
				}
			}
		},
		"one name without end": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `<ListBucketResult><Contents><Key>`)
			for range 4 << 10 {
				if _, err := io.WriteString(w, strings.Repeat("x", 1<<20)); err != nil {
					return
				}
			}
		},
		"no list":    func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>login</html>") },
		"half a one": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, page("", "w/a")[:90]) },
	} {
		t.Run(name, func(t *testing.T) {
			requests.Store(0)
			s := hostileBucket(t, func(w http.ResponseWriter, r *http.Request) {
				requests.Add(1)
				h(w, r)
			})
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			keys, err := list(t, s, "w/")
			runtime.ReadMemStats(&after)
			if sandbox.CodeOf(err) != sandbox.CodeUnavailable {
				t.Errorf("%d keys, %v", len(keys), err)
			}
			if n := requests.Load(); n > 100 {
				t.Errorf("it was asked %d times", n)
			}
			if grown := int64(after.HeapSys) - int64(before.HeapSys); grown > 256<<20 {
				t.Errorf("memory grew by %d MiB", grown>>20)
			}
		})
	}
	t.Run("names", func(t *testing.T) {
		s := hostileBucket(t, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, page("", "../../etc/passwd", "/etc/passwd", "other/a", "w/", "w/../x", "w/.hidden", "w//a", "w/a", "w/a&#10;b", "w/b\\c", "w/"+strings.Repeat("x", 600), "w0/a"))
		})
		keys, err := list(t, s, "w/")
		if err != nil || len(keys) != 1 || keys[0] != "w/a" {
			t.Errorf("%q, %v; want w/a alone", keys, err)
		}
	})
}

// TestAttackHostileObjects makes a bucket answer with other content than
// requested.
func TestAttackHostileObjects(t *testing.T) {
	var stolen atomic.Int64
	thief := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { stolen.Add(1) }))
	t.Cleanup(thief.Close)
	text := strings.Repeat("x", 100)
	sized := func(size string, h http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("ETag", `"x"`)
			w.Header().Set("Last-Modified", "Mon, 02 Jan 2006 15:04:05 GMT")
			w.Header().Set("Content-Length", size)
			h(w, r)
		}
	}
	redirect := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, thief.URL+r.URL.Path, code) }
	}
	for name, tt := range map[string]struct {
		h    http.HandlerFunc
		most int // bytes that may be read; negative: it must fail
	}{
		"more than was asked for": {sized("100", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }), 10},
		"less than was asked for": {sized("3", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "abc") }), 3},
		"less than was promised":  {sized("10", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "abc") }), -1},
		"301":                     {redirect(301), -1},
		"307":                     {redirect(307), -1},
		"308":                     {redirect(308), -1},
		"an error that says secret": {func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(400)
			_, _ = io.WriteString(w, fmt.Sprint(r.Header))
		}, -1},
		"another region": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Amz-Bucket-Region", "evil-1")
			w.WriteHeader(400)
			_, _ = io.WriteString(w, `<Error><Code>AuthorizationHeaderMalformed</Code><Region>evil-1</Region></Error>`)
		}, -1},
	} {
		t.Run(name, func(t *testing.T) {
			s := hostileBucket(t, tt.h)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			var got []byte
			r, err := s.Get(ctx, "key", 0, 10)
			if err == nil {
				got, err = io.ReadAll(r)
				_ = r.Close()
			}
			if tt.most < 0 && err == nil || len(got) > max(tt.most, 10) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
			if err != nil && (strings.Contains(err.Error(), canarySecret) || strings.Contains(err.Error(), canaryKey)) {
				t.Errorf("the error contains the key: %v", err)
			}
			if err := s.Put(ctx, "key", strings.NewReader("secret"), blob.PutOptions{IfAbsent: true}); strings.HasPrefix(name, "30") && err == nil {
				t.Error("a redirected upload succeeded")
			}
		})
	}
	if stolen.Load() > 0 {
		t.Errorf("%d requests were sent to another server", stolen.Load())
	}
}
