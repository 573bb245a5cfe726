package daemon_test

import (
	"encoding/binary"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

// frames reads the stream of a command, frame by frame.
type frames struct {
	t *testing.T
	r io.ReadCloser
}

// run starts a command in the way of E2B's SDKs, with Connect's JSON.
func (f e2bFiles) run(process string, headers ...string) frames {
	f.t.Helper()
	body := append([]byte{0, 0, 0, 0, 0}, process...)
	binary.BigEndian.PutUint32(body[1:], uint32(len(process)))
	r, err := http.NewRequestWithContext(f.t.Context(), "POST", "http://"+f.addr+"/process.Process/Start", strings.NewReader(string(body)))
	if err != nil {
		f.t.Fatal(err)
	}
	headers = append(headers, "E2b-Sandbox-Id", f.id, "E2b-Sandbox-Port", "49983", "X-Access-Token", f.token,
		"Content-Type", "application/connect+json", "Connect-Protocol-Version", "1")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	transport := &http.Transport{}
	f.t.Cleanup(transport.CloseIdleConnections)
	resp, err := transport.RoundTrip(r)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		f.t.Fatalf("status %d", resp.StatusCode)
	}
	return frames{f.t, resp.Body}
}

// next returns the flags and the content of a frame.
func (f frames) next() (flags byte, said map[string]any, err error) {
	var head [5]byte
	if _, err := io.ReadFull(f.r, head[:]); err != nil {
		return 0, nil, err
	}
	body := make([]byte, binary.BigEndian.Uint32(head[1:]))
	if _, err := io.ReadFull(f.r, body); err != nil {
		return 0, nil, err
	}
	return head[0], said, json.Unmarshal(body, &said)
}

// until reads events until one of a kind arrives.
func (f frames) until(kind string) any {
	f.t.Helper()
	for {
		flags, said, err := f.next()
		if err != nil || flags != 0 {
			f.t.Fatalf("no %s came before the end: %v %v", kind, said, err)
		}
		if what, ok := said["event"].(map[string]any)[kind]; ok {
			return what
		}
	}
}

// TestE2BStreams checks the frames of commands: an idle stream gets keepalives,
// a timeout has its own error, and the streams of a killed sandbox end in the
// middle, so that clients do not take that for the end of the command.
func TestE2BStreams(t *testing.T) {
	_, c, mine, _ := startE2B(t)
	id, token := c.create(mine)
	f := e2bFiles{c, id, token}

	said := f.run(`{"process":{"cmd":"sh","args":["-c","echo hi; exit 3"]},"stdin":false}`)
	said.until("start")
	if end := said.until("end").(map[string]any); end["exitCode"] != 3.0 || end["exited"] != true || end["status"] != "exit status 3" {
		t.Errorf("it ended with %v", end)
	}
	if flags, last, err := said.next(); err != nil || flags != 2 || len(last) != 0 {
		t.Errorf("the last frame: %d %v %v", flags, last, err)
	}

	late := f.run(`{"process":{"cmd":"sleep","args":["1000"]},"stdin":false}`, "Connect-Timeout-Ms", "300")
	late.until("start")
	flags, last, err := late.next()
	if why, _ := last["error"].(map[string]any); err != nil || flags != 2 || why["code"] != "deadline_exceeded" {
		t.Errorf("when time was over: %d %v %v", flags, last, err)
	}

	silent := f.run(`{"process":{"cmd":"sleep","args":["1000"]},"stdin":false}`, "Keepalive-Ping-Interval", "1")
	silent.until("start")
	silent.until("keepalive")
	c.want(204, c.call("DELETE", "/sandboxes/"+id, "", "X-API-Key", mine))
	c.want(502, c.call("GET", "/health", "", "E2b-Sandbox-Id", id, "E2b-Sandbox-Port", "49983"))
	for {
		flags, said, err := silent.next()
		if err != nil {
			break // it was cut
		}
		if event, _ := said["event"].(map[string]any); flags != 0 || event["end"] != nil {
			t.Fatalf("a client is told an end: %d %v", flags, said)
		}
	}
	if _, err := silent.r.Read(make([]byte, 1)); err == io.EOF {
		t.Error("the answer came to its end")
	}
}
