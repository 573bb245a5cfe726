package gateway_test

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// natClient returns a network namespace with NAT through another one, as for
// containers. Sandboxes are compared with it.
func (w *world) natClient() *outside {
	w.tb.Helper()
	client, router := newOutside(w.tb), newOutside(w.tb)
	client.cable(router, "10.99.0.2/24", "10.99.0.1/24")
	router.cable(w.outside, "10.98.0.2/24", "10.98.0.1/24")
	client.run("ip link set lo up", "ip route add default via 10.99.0.1")
	router.run("ip route add "+netip.PrefixFrom(w.good, 32).String()+" via 10.98.0.1",
		"iptables -t nat -A POSTROUTING -s 10.99.0.0/24 -j MASQUERADE", "sysctl -q net.ipv4.ip_forward=1")
	return client
}

// cable connects two namespaces.
func (o *outside) cable(other *outside, here, there string) {
	o.tb.Helper()
	pid := other.resident()
	o.run("ip link add v0 type veth peer name v1 netns "+pid, "ip addr add "+here+" dev v0", "ip link set v0 up")
	other.run("ip addr add "+there+" dev v1", "ip link set v1 up")
}

// resident starts a process that lives in the namespace, for those who name
// namespaces by processes.
func (o *outside) resident() string {
	o.tb.Helper()
	p := exec.Command("cat")
	hold, err := p.StdinPipe()
	if err != nil {
		o.tb.Fatal(err)
	}
	o.do(func() { err = p.Start() })
	if err != nil {
		o.tb.Fatal(err)
	}
	o.tb.Cleanup(func() {
		hold.Close()
		_ = p.Wait()
	})
	return strconv.Itoa(p.Process.Pid)
}

// run runs commands in the namespace.
func (o *outside) run(commands ...string) {
	o.tb.Helper()
	o.do(func() {
		for _, c := range commands {
			f := strings.Fields(c)
			if out, err := exec.Command(f[0], f[1:]...).CombinedOutput(); err != nil {
				o.tb.Fatalf("%s: %v: %s", c, err, out)
			}
		}
	})
}

// mitmproxy starts one that $MITMDUMP names, and returns its address; empty
// without one.
func (w *world) mitmproxy() string {
	program := os.Getenv("MITMDUMP")
	if program == "" {
		return ""
	}
	w.tb.Helper()
	p := exec.Command(program, "-q", "--listen-host", w.good.String(), "-p", "3129", "--ssl-insecure", "--set", "confdir="+w.tb.TempDir())
	var err error
	w.outside.do(func() { err = p.Start() })
	if err != nil {
		w.tb.Fatal(err)
	}
	w.tb.Cleanup(func() {
		_ = p.Process.Kill()
		_ = p.Wait()
	})
	address := w.good.String() + ":3129"
	for limit := time.Now().Add(time.Minute); ; {
		w.outside.do(func() {
			var c net.Conn
			if c, err = net.Dial("tcp", address); err == nil {
				c.Close()
			}
		})
		if err == nil {
			return address
		}
		if time.Now().After(limit) {
			w.tb.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}
