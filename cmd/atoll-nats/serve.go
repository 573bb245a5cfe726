package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/atoll-run/atoll/internal/machine/broker"
	"github.com/atoll-run/atoll/sandbox"
)

// run serves until ctx ends.
func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("atoll-nats", flag.ContinueOnError)
	listen := flags.String("listen", ":4222", "take connections of machines and of the daemon on this TCP address, HOST:PORT")
	certificate := flags.String("tls-cert", "", "file with the certificate, in PEM; needed unless the address is a loopback one")
	key := flags.String("tls-key", "", "file with its key, in PEM")
	url := flags.String("url", "", "address that the daemon reaches, such as tls://atoll.example.com:4222")
	out := flags.String("out", "machines.json", "file for: atoll up --machines-file; it contains secrets, which are kept if it exists")
	if err := flags.Parse(args); err != nil {
		return err
	}
	options := broker.Options{Listen: *listen}
	if *certificate != "" || *key != "" {
		pair, err := tls.LoadX509KeyPair(*certificate, *key)
		if err != nil {
			return err
		}
		options.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	} else if host, _, err := net.SplitHostPort(*listen); err != nil || !loopback(host) {
		return errors.New("give --tls-cert and --tls-key, or listen on 127.0.0.1")
	}
	var err error
	if options.Former, err = read(*out); err != nil {
		return err
	}
	server, err := broker.Start(options)
	if sandbox.CodeOf(err) == sandbox.CodeInvalid && options.Former != nil {
		return fmt.Errorf("%s: %w; it is left as it is", *out, err)
	}
	if err != nil {
		return err
	}
	defer server.Close()
	address := *url
	if address == "" {
		scheme := "nats://"
		if options.TLS != nil {
			scheme = "tls://"
		}
		address = scheme + strings.Replace(server.Addr().String(), "[::]", "localhost", 1)
	}
	if err := write(*out, server.Describe(address)); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "atoll-nats: listening on %s; next: atoll up --machines-file %s\n", server.Addr(), *out)
	<-ctx.Done()
	return nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// read returns the description that an earlier start wrote, nil if there is none.
func read(path string) (*broker.Description, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s: others can read the secrets in it; remove it, so that there are new ones, and restart the daemon", path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	d := &broker.Description{}
	if err := json.Unmarshal(text, d); err != nil {
		return nil, fmt.Errorf("%s: %w; it is not a file of atoll-nats, and is left as it is", path, err)
	}
	return d, nil
}

// write replaces the file, which only its owner can read.
func write(path string, d broker.Description) error {
	text, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".machines-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(append(text, '\n'))
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
