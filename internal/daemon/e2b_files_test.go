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

	"github.com/atoll-run/atoll/internal/daemon"
	"github.com/atoll-run/atoll/internal/daemon/daemontest"
	"github.com/atoll-run/atoll/sandbox"
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

// TestE2BDownloads downloads whole files and ranges, as browsers and resuming
// clients do.
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

// TestE2BForms uploads forms with parts that contain the boundary, and
// incomplete forms, which must leave nothing.
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

// TestE2BReboots restarts sandboxes without their memory, from any paused
// state. Tests with real kernels check that processes are gone.
func TestE2BReboots(t *testing.T) {
	m := daemontest.New(t)
	d := m.Start(t, func(o *daemon.Options) { o.E2B.Listen = "127.0.0.1:0" })
	c, owner := e2bClient{t, d.E2B().String()}, daemontest.Client(t, d)
	mine := adminKey(t, d, "")
	id, token := c.create(mine)
	f := e2bFiles{c, id, token}
	f.want(200, f.file("POST", "/tmp/kept", "kept", "Content-Type", "application/octet-stream"))
	connect := func() answer {
		return c.call("POST", "/v2/sandboxes/"+id+"/connect", `{"memory":false}`, "X-API-Key", mine)
	}
	c.want(200, connect()) // it runs, and continues
	for _, rest := range []string{`{}`, `{"memory":false}`} {
		c.want(204, c.call("POST", "/sandboxes/"+id+"/pause", rest, "X-API-Key", mine))
		c.want(201, connect())
	}
	sb, err := owner.Get(t.Context(), "sb-"+strings.TrimPrefix(id, "sb"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Pause(t.Context(), sandbox.PauseMemory); err != nil {
		t.Fatal(err)
	}
	c.want(201, connect())
	if a := f.want(200, f.file("GET", "/tmp/kept", "")); string(a.body) != "kept" {
		t.Errorf("its file is %q", a.body)
	}
}

// TestE2BUploadsThatAreRefused sends invalid requests about files.
func TestE2BUploadsThatAreRefused(t *testing.T) {
	_, c, mine, _ := startE2B(t)
	id, token := c.create(mine)
	f := e2bFiles{c, id, token}
	plain := []string{"Content-Type", "application/octet-stream"}
	put := func(headers ...string) answer { return f.file("POST", "/tmp/f", "x", append(headers, plain...)...) }
	f.want(200, put("X-Metadata-Owner", "somebody"))
	f.want(400, put("X-Metadata-Owner", "not\tprintable"))
	f.want(400, put("X-Metadata-"+strings.Repeat("k", 247), "v"))
	f.want(400, put("X-Metadata-Owner", strings.Repeat("v", 4097)))
	f.want(400, put("Content-Encoding", "br"))
	f.want(400, put("Content-Encoding", "gzip")) // which it is not
	f.want(400, f.file("POST", "/tmp/f", "x", "Content-Type", "text/plain"))
	f.want(400, f.file("POST", "/tmp", "x", plain...))
	f.want(400, f.file("GET", "/tmp", ""))
	f.want(404, f.file("GET", "/tmp/missing", ""))
	f.want(406, f.file("GET", "/tmp/f", "", "Accept-Encoding", "br, identity;q=0"))
	if a := f.want(200, f.file("GET", "/tmp/f", "", "Accept-Encoding", "br")); string(a.body) != "x" {
		t.Errorf("it holds %q", a.body)
	}
}

// TestE2BOldRoutes calls routes that only old SDKs or E2B's command line use.
func TestE2BOldRoutes(t *testing.T) {
	_, c, mine, other := startE2B(t)
	id, _ := c.create(mine)
	call := func(method, path, body string) answer { return c.call(method, path, body, "X-API-Key", mine) }
	ends := func() any { return c.want(200, call("GET", "/sandboxes/"+id, "")).fields["endAt"] }
	begin := ends()
	c.want(204, call("POST", "/sandboxes/"+id+"/refreshes", `{"duration":1}`))
	if ends() != begin {
		t.Error("a refresh made its life shorter")
	}
	c.want(204, call("POST", "/sandboxes/"+id+"/refreshes", `{"duration":3600}`))
	if ends() == begin {
		t.Error("a refresh did not make its life longer")
	}
	for _, bad := range []string{`{"duration":-1}`, `{"duration":3601}`, `{"duration":"x"}`} {
		c.want(400, call("POST", "/sandboxes/"+id+"/refreshes", bad))
	}
	c.want(404, c.call("POST", "/sandboxes/"+id+"/refreshes", `{"duration":10}`, "X-API-Key", other))
	c.want(409, call("POST", "/sandboxes/"+id+"/resume", `{}`)) // it runs

	many := c.want(200, call("GET", "/sandboxes/metrics?sandbox_ids="+id+",sb0000000000000", ""))
	if all := many.fields["sandboxes"].(map[string]any); len(all) != 1 || all[id] == nil {
		t.Errorf("the metrics are %s", many.body)
	}
	if all := c.want(200, c.call("GET", "/sandboxes/metrics?sandbox_ids="+id, "", "X-API-Key", other)).fields["sandboxes"].(map[string]any); len(all) != 0 {
		t.Errorf("another tenant sees %v", all)
	}
	c.want(400, call("GET", "/sandboxes/metrics?sandbox_ids="+strings.Repeat("x,", 100), ""))
	if all := call("GET", "/sandboxes", "").list(t); len(all) != 1 || all[0]["sandboxID"] != id {
		t.Errorf("the list is %v", all)
	}
	if all := c.call("GET", "/sandboxes", "", "X-API-Key", other).list(t); len(all) != 0 {
		t.Errorf("another tenant sees %v", all)
	}
}
