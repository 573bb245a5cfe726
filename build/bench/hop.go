package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/atoll-run/atoll"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/sandbox/operator"
)

// hop measures what a control daemon adds to a command in a sandbox on a node, to
// which it speaks TLS.
func (b *bench) hop(ctx context.Context) (err error) {
	address, err := freeAddress()
	if err != nil {
		return err
	}
	cert, key, err := certificate(b.dir)
	if err != nil {
		return err
	}
	begin := func(name string, args ...string) (*atoll.Client, func() error, error) {
		state := filepath.Join(b.dir, name)
		cli := program{args: []string{b.atoll, "--state-dir", state}}
		if err := cli.with(append([]string{"up", "--detach"}, args...)...).run(ctx); err != nil {
			return nil, nil, err
		}
		end := func() error {
			ctx := context.WithoutCancel(ctx)
			return errors.Join(cli.with("rm", "--force", "--all").run(ctx), cli.with("down").run(ctx))
		}
		c, err := atoll.New(atoll.Options{Host: "unix://" + filepath.Join(state, atoll.SocketName)})
		return c, end, err
	}
	node, end, err := begin("node", "--listen", address, "--tls-cert", cert, "--tls-key", key)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, node.Close(), end()) }()
	made, err := node.Admin().CreateKey(ctx, operator.NewKey{Name: "control", Verbs: []string{"read", "write", "exec"}})
	if err != nil {
		return err
	}
	keys := filepath.Join(b.dir, "node-keys")
	if err := os.WriteFile(keys, []byte("n="+made.Token+"\n"), 0o600); err != nil {
		return err
	}
	control, finish, err := begin("control", "--pool", "0", "--node", "n=https://"+address, "--node-key-file", keys, "--node-ca-file", cert)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, control.Close(), finish()) }()
	far, err := control.Create(ctx, sandbox.Spec{Provider: "node-n"})
	if err != nil {
		return err
	}
	near, err := node.Get(ctx, string(far.ID())) // its name there
	if err != nil {
		return err
	}
	command := sandbox.Command{Args: nothing}
	timed := func(sb *atoll.Sandbox) func(context.Context) (timing, error) {
		return func(ctx context.Context) (timing, error) {
			began := time.Now()
			p, err := sb.Exec(ctx, command)
			if err != nil {
				return timing{}, err
			}
			err = errors.Join(succeeded(ctx, p), p.Close())
			return timing{whole: time.Since(began)}, err
		}
	}
	m, err := race(ctx, 10*b.rounds, []contestant{{"hop", timed(far)}, {"node", timed(near)}})
	if err != nil {
		return err
	}
	b.compare("exec of `/bin/true`: control daemon and node, with TLS", wholes(m, "hop"), "its node itself", wholes(m, "node"), addsAtMost(2, "ms"))
	return nil
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// certificate makes a certificate for the loopback address.
func certificate(dir string) (cert, key string, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", err
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	made, err := x509.CreateCertificate(rand.Reader, c, c, &private.PublicKey, private)
	if err != nil {
		return "", "", err
	}
	text, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return "", "", err
	}
	write := func(name, kind string, data []byte) string {
		path := filepath.Join(dir, name)
		if failed := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}), 0o600); failed != nil {
			err = fmt.Errorf("%s: %w", path, failed)
		}
		return path
	}
	cert, key = write("node-cert.pem", "CERTIFICATE", made), write("node-key.pem", "PRIVATE KEY", text)
	return cert, key, err
}
