package gateway_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/sandbox"
)

// benchClient is a program that makes requests, each on a connection of its own
// or all on one, and prints how many nanoseconds one took.
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
	t := &http.Transport{DisableKeepAlives: os.Args[3] == "fresh", TLSClientConfig: &tls.Config{InsecureSkipVerify: os.Args[4] == "insecure"}}
	c := &http.Client{Transport: t}
	var best time.Duration
	var began time.Time
	for i := range n + 1 {
		if i == 1 {
			began = time.Now()
		}
		r, err := c.Get(os.Args[1])
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		io.Copy(io.Discard, r.Body)
		r.Body.Close()
	}
	best = time.Since(began) / time.Duration(n)
	fmt.Println(best.Nanoseconds())
}
`

// BenchmarkEgress measures requests out of a sandbox through the gateway, and
// the same program making the same requests without either, in the same run.
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
	box := r.box("bench", profile(
		sandbox.Rule{Action: sandbox.Allow, Hosts: []string{"good.test", "good.test:9000"}},
		sandbox.Rule{Action: sandbox.Allow, Hosts: []string{"api.test"}, Paths: []string{"/**"}},
	))
	client := buildClient(b, benchClient)
	program, err := os.ReadFile(client)
	if err != nil {
		b.Fatal(err)
	}
	box.put("/tmp/client", program)
	direct := func(args string) float64 {
		var out []byte
		w.outside.do(func() { out, err = exec.Command(client, strings.Fields(args)...).Output() })
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
				var ours, theirs float64
				for range b.N {
					out, _ := box.sh("/tmp/client " + way.url + m.query + " " + m.count + " " + m.kind + " -")
					ours += nanoseconds(b, out)
					theirs += direct(strings.Join([]string{way.bare + m.query, m.count, m.kind, way.verify}, " "))
				}
				b.ReportMetric(ours/float64(b.N)/1e6, "ms/request")
				b.ReportMetric(theirs/float64(b.N)/1e6, "ms/direct")
				b.ReportMetric(ours/theirs, "ratio")
				if m.query != "" {
					b.ReportMetric(64*float64(1<<20)*8/(ours/float64(b.N)), "Gbit/s")
				}
			})
		}
	}
}

func nanoseconds(tb testing.TB, out string) float64 {
	tb.Helper()
	n, err := strconv.ParseFloat(strings.TrimSpace(out), 64)
	if err != nil {
		tb.Fatal(fmt.Sprintf("%.500s", out))
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
