package gateway_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

// benchClient is a program that makes requests, each on its own connection or
// all on one, and prints the nanoseconds per request.
const benchClient = `package main

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"
)

func main() {
	n, _ := strconv.Atoi(os.Args[2])
	t := &http.Transport{Proxy: http.ProxyFromEnvironment, DisableKeepAlives: os.Args[3] == "fresh", TLSClientConfig: &tls.Config{InsecureSkipVerify: os.Args[4] == "insecure"}}
	c := &http.Client{Transport: t}
	var began time.Time
	buf := make([]byte, 256<<10)
	for i := range n + 1 {
		if i == 1 {
			began = time.Now()
		}
		r, err := c.Get(os.Args[1])
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		io.CopyBuffer(struct{ io.Writer }{io.Discard}, r.Body, buf)
		r.Body.Close()
	}
	fmt.Println((time.Since(began) / time.Duration(n)).Nanoseconds())
}
`

// BenchmarkEgress measures requests out of a sandbox through the gateway and, in
// the same run, the same program making the same requests on the machine itself:
// directly, from behind a router that translates addresses, and through the
// mitmproxy that $MITMDUMP names.
func BenchmarkEgress(b *testing.B) {
	w := newWorld(b)
	w.lead(w.good, "good.test", "api.test")
	chunk := make([]byte, 1<<20)
	big := func(rw http.ResponseWriter, r *http.Request) {
		mb, _ := strconv.Atoi(r.URL.Query().Get("mb"))
		for range mb {
			_, _ = rw.Write(chunk)
		}
		_, _ = io.WriteString(rw, "end")
	}
	for _, h := range []string{"good.test", "api.test", w.good.String()} {
		w.handle(h, big)
	}
	w.outside.do(func() { w.web(w.listen(w.good, 9000), nil) })
	r := w.rig()
	sb := r.sandbox("bench", profile(
		sandbox.Rule{Action: sandbox.Allow, Hosts: []string{"good.test", "good.test:9000"}},
		sandbox.Rule{Action: sandbox.Allow, Hosts: []string{"api.test"}, Paths: []string{"/**"}},
	))
	client := buildClient(b, benchClient)
	program, err := os.ReadFile(client)
	if err != nil {
		b.Fatal(err)
	}
	sb.put("/tmp/client", program)
	behind, proxy := w.natClient(), w.mitmproxy()
	bare := func(where *outside, args string, env ...string) float64 {
		c := exec.Command(client, strings.Fields(args)...)
		c.Env = append(os.Environ(), env...)
		var out []byte
		where.do(func() { out, err = c.CombinedOutput() })
		return nanoseconds(b, string(out))
	}
	for _, way := range []struct{ name, url, bare, verify string }{
		{"passed-through", "http://good.test:9000/", "http://" + w.good.String() + ":9000/", "-"},
		{"http", "http://good.test/", "http://" + w.good.String() + "/", "-"},
		{"tls-ended", "https://api.test/", "https://" + w.good.String() + "/", "insecure"},
	} {
		for _, m := range []struct{ name, query, count, kind string }{
			{"connect-and-request", "", "200", "fresh"}, {"request", "", "500", "kept"}, {"download-64MB", "?mb=64", "5", "kept"},
		} {
			b.Run(way.name+"/"+m.name, func(b *testing.B) {
				args := strings.Join([]string{way.bare + m.query, m.count, m.kind, way.verify}, " ")
				var ours, direct, nat, mitm float64
				for range b.N {
					out, _ := sb.sh("/tmp/client " + way.url + m.query + " " + m.count + " " + m.kind + " -")
					ours += nanoseconds(b, out)
					direct += bare(w.outside, args)
					nat += bare(behind, args)
					if proxy != "" && way.name != "passed-through" {
						mitm += bare(w.outside, args, "HTTP_PROXY=http://"+proxy, "HTTPS_PROXY=http://"+proxy)
					}
				}
				for name, sum := range map[string]float64{"ms/request": ours, "ms/direct": direct, "ms/nat": nat, "ms/mitmproxy": mitm} {
					b.ReportMetric(sum/float64(b.N)/1e6, name)
				}
				if m.query != "" {
					b.ReportMetric(64*float64(1<<20)*8/(ours/float64(b.N)), "Gbit/s")
				}
			})
		}
	}
}

// streamClient reads from a server, or writes to one until that has everything,
// and prints how many nanoseconds 512 MiB took.
const streamClient = `package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

func main() {
	c, err := net.Dial("tcp", os.Args[1])
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	buf, began := make([]byte, 256<<10), time.Now()
	if os.Args[2] == "from" {
		_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, io.LimitReader(c, 512<<20), buf)
	} else {
		for i := 0; i < 2048 && err == nil; i++ {
			_, err = c.Write(buf)
		}
		c.(*net.TCPConn).CloseWrite()
		c.Read(buf)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(time.Since(began).Nanoseconds())
}
`

// BenchmarkStream measures one TCP connection that is passed through, and the
// same on the machine itself.
func BenchmarkStream(b *testing.B) {
	w := newWorld(b)
	w.lead(w.good, "good.test")
	w.outside.do(func() {
		w.flood(w.listen(w.good, 9001))
		w.each(w.listen(w.good, 9002), func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	})
	sb := w.rig().sandbox("stream", allow("good.test:9001", "good.test:9002"))
	client := buildClient(b, streamClient)
	program, err := os.ReadFile(client)
	if err != nil {
		b.Fatal(err)
	}
	sb.put("/tmp/client", program)
	behind := w.natClient()
	for port, way := range map[string]string{":9001": "from", ":9002": "to"} {
		b.Run(way, func(b *testing.B) {
			var ours, direct, nat float64
			for range b.N {
				out, _ := sb.sh("/tmp/client good.test" + port + " " + way)
				ours += nanoseconds(b, out)
				for where, sum := range map[*outside]*float64{w.outside: &direct, behind: &nat} {
					var out []byte
					where.do(func() { out, _ = exec.Command(client, w.good.String()+port, way).CombinedOutput() })
					*sum += nanoseconds(b, string(out))
				}
			}
			for name, sum := range map[string]float64{"Gbit/s": ours, "Gbit/s-direct": direct, "Gbit/s-nat": nat} {
				b.ReportMetric(512*float64(1<<20)*8*float64(b.N)/sum, name)
			}
		})
	}
}

// BenchmarkOpenFlows measures the memory of the gateway process per open, idle
// connection, in bytes.
func BenchmarkOpenFlows(b *testing.B) {
	const flows = 2000
	w := newWorld(b)
	w.lead(w.good, "good.test")
	w.outside.do(func() { w.echo(w.listen(w.good, 9001)) })
	r := w.rig()
	sb := r.sandbox("flows", allow("good.test:9001"))
	pid := gatewayProcess(b)
	for range b.N {
		before := privateMemory(b, pid)
		p := sb.background(fmt.Sprintf(flowsScript, flows))
		during := privateMemory(b, pid)
		b.ReportMetric((during-before)/flows, "B/flow")
		b.ReportMetric(during/1e6, "MB")
		p.Close()
	}
}

// flowsScript opens connections, sends and receives a byte on each, and keeps
// them open.
const flowsScript = `python3 -c '
import resource, socket, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (%[1]d + 64, %[1]d + 64))
host, all = socket.gethostbyname("good.test"), []
for i in range(%[1]d):
    s = socket.create_connection((host, 9001), 20)
    s.sendall(b"x"); s.recv(1)
    all.append(s)
print("ready", flush=True)
sys.stdin.read()
'`

// privateMemory returns the private memory of a process, in bytes.
func privateMemory(tb testing.TB, pid int) float64 {
	tb.Helper()
	rollup, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "smaps_rollup"))
	if err != nil {
		tb.Fatal(err)
	}
	var sum float64
	for line := range strings.Lines(string(rollup)) {
		if f := strings.Fields(line); len(f) == 3 && strings.HasPrefix(f[0], "Private_") {
			n, _ := strconv.ParseFloat(f[1], 64)
			sum += n * 1024
		}
	}
	return sum
}

func nanoseconds(tb testing.TB, out string) float64 {
	tb.Helper()
	n, err := strconv.ParseFloat(strings.TrimSpace(out), 64)
	if err != nil {
		tb.Fatalf("%.500s", out)
	}
	return n
}

// buildClient builds a program and returns its path.
func buildClient(tb testing.TB, source string) string {
	tb.Helper()
	dir := tb.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(source), 0o600); err != nil {
		tb.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", "client", "main.go")
	build.Dir, build.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GO111MODULE=off")
	if out, err := build.CombinedOutput(); err != nil {
		tb.Fatalf("%v: %s", err, out)
	}
	return filepath.Join(dir, "client")
}
