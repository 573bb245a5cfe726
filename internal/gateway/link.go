package gateway

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/gateway/wire"
)

// Link is a sandbox's network card, and what its kernel has to know about it.
type Link struct {
	File      *os.File       // a connected SOCK_SEQPACKET socket; each message is one IP packet
	MTU       int            // bytes
	Addresses []netip.Prefix // of the sandbox
	Gateways  []netip.Addr   // one of each family; everything goes there
	DNS       netip.Addr     // answers names
	CA        []byte         // PEM; programs inside have to trust it
}

func newLink(f *os.File, ca []byte) *Link {
	return &Link{
		File: f, MTU: wire.MTU, DNS: wire.Gateway, CA: ca,
		Addresses: []netip.Prefix{netip.PrefixFrom(wire.Address, 32), netip.PrefixFrom(wire.Address6, 128)},
		Gateways:  []netip.Addr{wire.Gateway, wire.Gateway6},
	}
}

// linkPair makes the two ends of a link, with as much room as the machine
// permits to everybody, or to root.
func linkPair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	for _, fd := range fds {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, wire.SocketBuffer) != nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, wire.SocketBuffer)
		}
	}
	return os.NewFile(uintptr(fds[0]), "link"), os.NewFile(uintptr(fds[1]), "link"), nil
}

// caLife is longer than any sandbox should live. The authority is worth nothing
// outside its sandbox.
const caLife = 5 * 365 * 24 * time.Hour

// authority is a certificate authority of one sandbox. Its key is kept in the
// memory of this process and of the gateway process, and nowhere else, so that
// a gateway that is replaced goes on with the certificate that programs in the
// sandbox trust already.
type authority struct {
	cert []byte // DER
	key  []byte // PKCS #8
	pem  []byte
}

func newAuthority(name string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	now := time.Now()
	t := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{Organization: []string{"Atoll"}, CommonName: "Atoll gateway of " + name},
		NotBefore:    now.Add(-24 * time.Hour), NotAfter: now.Add(caLife),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign, BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return &authority{cert: der, key: pkcs8, pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}, nil
}
