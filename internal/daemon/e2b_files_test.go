package daemon_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/url"
	"strings"
	"testing"
)

// e2bFiles is the files of a sandbox as E2B's clients see them.
type e2bFiles struct {
	e2bClient
	id, token string
}

func (f e2bFiles) file(method, path, body string, headers ...string) answer {
	f.t.Helper()
	return f.call(method, "/files?path="+url.QueryEscape(path), body,
		append(headers, "E2b-Sandbox-Id", f.id, "E2b-Sandbox-Port", "49983", "X-Access-Token", f.token)...)
}

// TestE2BDownloads asks for files whole and in parts, as browsers and clients
// that go on after an interruption do.
func TestE2BDownloads(t *testing.T) {
	_, c, mine, _ := startE2B(t)
	id, token := c.create(mine)
	f := e2bFiles{c, id, token}
	large := strings.Repeat("0123456789abcdef", 1<<17) // several windows of the link
	for path, content := range map[string]string{"/tmp/large": large, "/tmp/empty": ""} {
		f.want(200, f.file("POST", path, content, "Content-Type", "application/octet-stream"))
	}
	whole := f.want(200, f.file("GET", "/tmp/large", "", "Accept-Encoding", "identity"))
	if string(whole.body) != large || whole.header.Get("Content-Length") != fmt.Sprint(len(large)) {
		t.Errorf("%d bytes came, of %s", len(whole.body), whole.header.Get("Content-Length"))
	}
	if a := f.want(200, f.file("GET", "/tmp/empty", "", "Accept-Encoding", "identity")); a.header.Get("Content-Length") != "0" {
		t.Errorf("the length of nothing is %q", a.header.Get("Content-Length"))
	}
	for asked, want := range map[string]string{
		"bytes=0-0": "0", "bytes=10-15": "abcdef", "bytes=-3": "def", "bytes=2097150-9999999": "ef",
		"bytes=100-1048675": strings.Repeat(large[100-100%16+4:100-100%16+20], 1<<16),
	} {
		if a := f.want(206, f.file("GET", "/tmp/large", "", "Range", asked)); string(a.body) != want {
			t.Errorf("%s gave %d bytes, %.20q", asked, len(a.body), a.body)
		}
	}
	if a := f.file("GET", "/tmp/large", "", "Range", "bytes=2097152-"); a.status != 416 {
		t.Errorf("beyond the end: %d", a.status)
	}
	several := f.want(206, f.file("GET", "/tmp/large", "", "Range", "bytes=0-1,10-15"))
	_, params, _ := mime.ParseMediaType(several.header.Get("Content-Type"))
	parts := multipart.NewReader(bytes.NewReader(several.body), params["boundary"])
	for _, want := range []string{"01", "abcdef"} {
		part, err := parts.NextPart()
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := io.ReadAll(part); string(got) != want {
			t.Errorf("a part is %q, want %q", got, want)
		}
	}
	zipped := f.want(200, f.file("GET", "/tmp/large", "", "Accept-Encoding", "gzip"))
	z, err := gzip.NewReader(bytes.NewReader(zipped.body))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(z); err != nil || string(got) != large {
		t.Errorf("compressed: %d bytes, %v", len(got), err)
	}
}

// TestE2BForms uploads forms whose parts look like the boundary, and forms that
// end too soon, of which nothing may stay.
func TestE2BForms(t *testing.T) {
	_, c, mine, _ := startE2B(t)
	id, token := c.create(mine)
	f := e2bFiles{c, id, token}
	tricky := strings.Repeat("\r\n--b\r\n--bound\r\r\n", 20_000)
	form := "--boundary\r\nContent-Disposition: form-data; name=\"file\"; filename=\"x\"\r\n\r\n" + tricky + "\r\n--boundary--\r\n"
	send := func(path, body string) answer {
		return f.file("POST", path, body, "Content-Type", "multipart/form-data; boundary=boundary")
	}
	f.want(200, send("/tmp/tricky", form))
	if a := f.want(200, f.file("GET", "/tmp/tricky", "")); string(a.body) != tricky {
		t.Errorf("%d bytes came back, want %d", len(a.body), len(tricky))
	}
	for _, cut := range []int{len(form) / 2, len(form) - 12} {
		if a := send("/tmp/cut", form[:cut]); a.status < 400 {
			t.Errorf("a form of %d bytes that ends too soon: %d", cut, a.status)
		}
		f.want(404, f.file("GET", "/tmp/cut", ""))
	}
	f.want(400, send("/tmp/none", "no form"))
}
