package egress_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/atoll-run/atoll/internal/gateway"
	"github.com/atoll-run/atoll/sandbox"
)

// kernelEnd is the network of a sandbox's kernel without the sandbox: the same
// stack on the same kind of link, in the process of the test, so that what
// system calls cost inside a sandbox is not measured.
type kernelEnd struct {
	stack *stack.Stack
	roots *x509.CertPool // of the gateway's authority
}

func newKernelEnd(b *testing.B, l *gateway.Link) *kernelEnd {
	b.Helper()
	fd, err := unix.Dup(int(l.File.Fd()))
	if err != nil {
		b.Fatal(err)
	}
	l.File.Close()
	ep, err := fdbased.New(&fdbased.Options{
		FDs: []int{fd}, MTU: uint32(l.MTU), PacketDispatchMode: fdbased.RecvMMsg, TXChecksumOffload: true, RXChecksumOffload: true,
	})
	if err != nil {
		b.Fatal(err)
	}
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol, udp.NewProtocol},
	})
	sack, moderate := tcpip.TCPSACKEnabled(true), tcpip.TCPModerateReceiveBufferOption(true)
	for _, terr := range []tcpip.Error{
		s.SetTransportProtocolOption(tcp.ProtocolNumber, &sack), s.SetTransportProtocolOption(tcp.ProtocolNumber, &moderate),
		s.CreateNIC(1, ep),
		s.AddProtocolAddress(1, tcpip.ProtocolAddress{
			Protocol: ipv4.ProtocolNumber, AddressWithPrefix: tcpip.AddrFromSlice(l.Addresses[0].Addr().AsSlice()).WithPrefix(),
		}, stack.AddressProperties{}),
	} {
		if terr != nil {
			b.Fatal(terr)
		}
	}
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: 1}})
	b.Cleanup(func() {
		s.Destroy()
		unix.Close(fd)
	})
	k := &kernelEnd{stack: s, roots: x509.NewCertPool()}
	k.roots.AppendCertsFromPEM(l.CA)
	return k
}

// dial looks a name up and connects to it.
func (k *kernelEnd) dial(ctx context.Context, _, address string) (net.Conn, error) {
	to, err := k.resolve(ctx, address)
	if err != nil {
		return nil, err
	}
	return gonet.DialContextTCP(ctx, k.stack, to, ipv4.ProtocolNumber)
}

func (k *kernelEnd) resolve(ctx context.Context, address string) (to tcpip.FullAddress, err error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return to, err
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return to, err
	}
	r := net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		return gonet.DialUDP(k.stack, nil, &tcpip.FullAddress{Addr: tcpip.AddrFrom4([4]byte{198, 18, 0, 1}), Port: 53}, ipv4.ProtocolNumber)
	}}
	addrs, err := r.LookupNetIP(ctx, "ip4", host+".")
	if err != nil {
		return to, err
	}
	return tcpip.FullAddress{Addr: tcpip.AddrFromSlice(addrs[0].Unmap().AsSlice()), Port: uint16(n)}, nil
}

// speedRig is a gateway process, which this program becomes, with servers of
// the test behind it.
type speedRig struct {
	b       *testing.B
	gateway *gateway.Gateway
	roots   *x509.CertPool // of the servers
	ports   struct{ plain, web, secure, source, sink, secret string }
}

func newSpeedRig(b *testing.B) *speedRig {
	b.Helper()
	r := &speedRig{b: b, roots: x509.NewCertPool()}
	cert, pemRoot := serverCertificate(b)
	r.roots.AppendCertsFromPEM(pemRoot)
	r.ports.plain = r.web(nil)
	r.ports.web = r.web(nil)
	r.ports.secure = r.web(&tls.Config{Certificates: []tls.Certificate{cert}})
	chunk := make([]byte, 256<<10)
	r.ports.source = r.serve(func(c net.Conn) {
		for {
			if _, err := c.Write(chunk); err != nil {
				return
			}
		}
	})
	r.ports.sink = r.serve(func(c net.Conn) {
		_, _ = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{c}, make([]byte, 256<<10))
		_, _ = c.Write([]byte("x"))
	})
	local := []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	settings := gateway.Settings{
		Private: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Hosts: map[string][]netip.Addr{"good.test": local}, Roots: pemRoot,
	}
	var err error
	r.gateway, err = gateway.New(gateway.Options{Dir: b.TempDir(), Settings: func() gateway.Settings { return settings }})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { r.gateway.Close() })
	return r
}

// kernel connects a kernel that may do what rules say after so many others.
func (r *speedRig) kernel(id string, others int) *kernelEnd {
	r.b.Helper()
	var rules []sandbox.Rule
	for i := range others {
		rules = append(rules, sandbox.Rule{Action: sandbox.Allow, Hosts: []string{fmt.Sprintf("h%d.example:443", i)}, Paths: []string{"/x/**"}})
	}
	open := []string{"good.test:" + r.ports.plain, "good.test:" + r.ports.source, "good.test:" + r.ports.sink}
	rules = append(rules, sandbox.Rule{Action: sandbox.Allow, Hosts: open},
		sandbox.Rule{Action: sandbox.Allow, Hosts: []string{"good.test:" + r.ports.web, "good.test:" + r.ports.secure}, Paths: []string{"/**"}})
	l, err := r.gateway.Connect(context.Background(), sandbox.ID(id), gateway.Policy{Profile: sandbox.Profile{Rules: rules}}, gateway.Known{})
	if err != nil {
		r.b.Fatal(err)
	}
	return newKernelEnd(r.b, l)
}

// web echoes bodies, and serves the requested number of MB.
func (r *speedRig) web(config *tls.Config) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.b.Fatal(err)
	}
	if config != nil {
		l = tls.NewListener(l, config)
	}
	chunk := make([]byte, 256<<10)
	s := &http.Server{ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		n, _ := io.CopyBuffer(struct{ io.Writer }{io.Discard}, q.Body, make([]byte, 256<<10))
		mb, _ := strconv.Atoi(q.URL.Query().Get("mb"))
		for range mb * 4 {
			_, _ = w.Write(chunk)
		}
		fmt.Fprint(w, n)
	})}
	go func() { _ = s.Serve(l) }()
	r.b.Cleanup(func() { s.Close() })
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

func (r *speedRig) serve(each func(net.Conn)) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.b.Fatal(err)
	}
	r.b.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				each(c)
			}()
		}
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

func serverCertificate(b *testing.B) (tls.Certificate, []byte) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		b.Fatal(err)
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"good.test"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		b.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// direct reaches the servers without a gateway.
func direct(ctx context.Context, network, address string) (net.Conn, error) {
	_, port, _ := net.SplitHostPort(address)
	return new(net.Dialer).DialContext(ctx, network, "127.0.0.1:"+port)
}

func httpClient(b *testing.B, dial dialer, roots *x509.CertPool, fresh bool) *http.Client {
	t := &http.Transport{DialContext: dial, DisableKeepAlives: fresh, TLSClientConfig: &tls.Config{RootCAs: roots}, DisableCompression: true}
	b.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: t, Timeout: time.Minute}
}

// timed runs f so often and returns how long one took.
func timed(b *testing.B, n int, f func() error) time.Duration {
	b.Helper()
	began := time.Now()
	for range n {
		if err := f(); err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(began) / time.Duration(n)
}

func get(c *http.Client, url string) func() error {
	buf := make([]byte, 256<<10)
	return func() error {
		a, err := c.Get(url)
		if err != nil {
			return err
		}
		defer a.Body.Close()
		_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, a.Body, buf)
		if err == nil && a.StatusCode != http.StatusOK {
			err = errors.New(a.Status)
		}
		return err
	}
}

// BenchmarkGateway measures the overhead of the gateway. Requests alternate
// between the gateway and a direct connection.
func BenchmarkGateway(b *testing.B) {
	r := newSpeedRig(b)
	few, many := r.kernel("few", 8), r.kernel("many", 9_998)
	pid := gatewayPID(b)
	for _, way := range []struct{ name, scheme, port string }{{"plain", "http", r.ports.plain}, {"http", "http", r.ports.web}, {"tls", "https", r.ports.secure}} {
		for _, fresh := range []bool{false, true} {
			name, url := way.name+"/request", way.scheme+"://good.test:"+way.port+"/a"
			if fresh {
				name = way.name + "/connect-and-request"
			}
			b.Run(name, func(b *testing.B) {
				const rounds = 20
				clients := []*http.Client{
					httpClient(b, direct, r.roots, fresh), httpClient(b, few.dial, few.roots, fresh), httpClient(b, many.dial, many.roots, fresh),
				}
				n := max(1, b.N/rounds)
				for _, c := range clients {
					timed(b, 3, get(c, url))
				}
				var took [3][]float64
				var used [3]time.Duration
				for range rounds {
					for i, c := range clients {
						before := processorTime(b, pid)
						took[i] = append(took[i], float64(timed(b, n, get(c, url)))/1e3)
						used[i] += processorTime(b, pid) - before
					}
				}
				bare := median(took[0])
				b.ReportMetric(bare, "µs/direct")
				b.ReportMetric(median(took[1])-bare, "µs-added/10-rules")
				b.ReportMetric(median(took[2])-bare, "µs-added/10000-rules")
				b.ReportMetric(float64(used[1].Microseconds())/float64(n*rounds), "cpu-µs/10-rules")
				b.ReportMetric(float64(used[2].Microseconds())/float64(n*rounds), "cpu-µs/10000-rules")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

func median(of []float64) float64 {
	slices.Sort(of)
	return of[len(of)/2]
}

// BenchmarkGatewayStream measures one connection that carries much.
func BenchmarkGatewayStream(b *testing.B) {
	r := newSpeedRig(b)
	k := r.kernel("stream", 8)
	pid := gatewayPID(b)
	const size = 256 << 20
	for _, way := range []struct {
		name string
		run  func(dialer, *x509.CertPool) error
	}{
		{"from", func(d dialer, _ *x509.CertPool) error { return download(d, "good.test:"+r.ports.source, size) }},
		{"to", func(d dialer, _ *x509.CertPool) error { return upload(d, "good.test:"+r.ports.sink, size) }},
		{"http-from", r.fetch("http", r.ports.web, size)},
		{"http-to", r.send("http", r.ports.web, size)},
		{"tls-from", r.fetch("https", r.ports.secure, size)},
		{"tls-to", r.send("https", r.ports.secure, size)},
	} {
		b.Run(way.name, func(b *testing.B) {
			var ours, bare, cpu time.Duration
			run := func(d dialer, roots *x509.CertPool) time.Duration {
				return timed(b, 1, func() error { return way.run(d, roots) })
			}
			for range b.N {
				before := processorTime(b, pid)
				ours += run(k.dial, k.roots)
				cpu += processorTime(b, pid) - before
				bare += run(direct, r.roots)
			}
			bits := 8 * float64(size) * float64(b.N)
			b.ReportMetric(bits/float64(ours), "Gbit/s")
			b.ReportMetric(bits/float64(bare), "Gbit/s-direct")
			b.ReportMetric(float64(cpu.Nanoseconds())/(size/1024)/float64(b.N), "cpu-ns/KiB")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func (r *speedRig) fetch(scheme, port string, size int) func(dialer, *x509.CertPool) error {
	return func(d dialer, roots *x509.CertPool) error {
		return get(httpClient(r.b, d, roots, true), fmt.Sprintf("%s://good.test:%s/?mb=%d", scheme, port, size>>20))()
	}
}

func (r *speedRig) send(scheme, port string, size int) func(dialer, *x509.CertPool) error {
	return func(d dialer, roots *x509.CertPool) error {
		a, err := httpClient(r.b, d, roots, true).Post(scheme+"://good.test:"+port+"/", "application/octet-stream", &zeros{n: size})
		if err != nil {
			return err
		}
		defer a.Body.Close()
		got, err := io.ReadAll(a.Body)
		if err == nil && string(bytes.TrimSpace(got)) != strconv.Itoa(size) {
			err = fmt.Errorf("%s arrived", got)
		}
		return err
	}
}

// zeros is a body of so many.
type zeros struct{ n int }

func (z *zeros) Read(p []byte) (int, error) {
	if z.n == 0 {
		return 0, io.EOF
	}
	n := min(len(p), z.n)
	z.n -= n
	return n, nil
}

func download(dial dialer, address string, size int64) error {
	c, err := dial(context.Background(), "tcp", address)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, io.LimitReader(c, size), make([]byte, 256<<10))
	return err
}

func upload(dial dialer, address string, size int) error {
	c, err := dial(context.Background(), "tcp", address)
	if err != nil {
		return err
	}
	defer c.Close()
	chunk := make([]byte, 256<<10)
	for range size / len(chunk) {
		if _, err := c.Write(chunk); err != nil {
			return err
		}
	}
	if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		return err
	}
	_, err = io.ReadFull(c, chunk[:1])
	return err
}

// gatewayPID finds the process that is the gateway of this one.
func gatewayPID(b *testing.B) int {
	b.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range all {
		if f := stat(name); len(f) > 1 && f[1] == strconv.Itoa(os.Getpid()) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			return pid
		}
	}
	b.Fatal("there is no gateway process")
	return 0
}

// stat reads what follows the name of a process: its state, its parent and so on.
func stat(name string) []string {
	text, _ := os.ReadFile(name)
	_, rest, _ := strings.Cut(string(text), ") ")
	return strings.Fields(rest)
}

// processorTime is what a process has used, in steps of a clock tick.
func processorTime(b *testing.B, pid int) time.Duration {
	b.Helper()
	f := stat(fmt.Sprintf("/proc/%d/stat", pid))
	if len(f) < 13 {
		b.Fatal("the gateway is gone")
	}
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}
