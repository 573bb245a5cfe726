package gvisor

import (
	"bytes"
	"context"
	"fmt"
	"io"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/sandbox"
)

// Where a sandbox with a network finds what it needs for that. The directory
// holds nothing secret.
const (
	fileResolv = "/etc/resolv.conf"
	fileCA     = "/etc/atoll/ca.crt"        // the gateway's authority alone
	fileBundle = "/etc/atoll/ca-bundle.crt" // and all that the image trusts
	maxBundle  = 8 << 20
)

// bundles are where distributions keep the authorities that programs trust.
var bundles = []string{
	"/etc/ssl/certs/ca-certificates.crt", // Debian, Alpine, Arch, Gentoo
	"/etc/pki/tls/certs/ca-bundle.crt",   // Fedora, RHEL
	"/etc/ssl/ca-bundle.pem",             // SUSE
	"/etc/ssl/cert.pem",                  // where OpenSSL looks by itself
}

// trustEnv tells programs that bring authorities of their own where to look.
// Those that add to what they have get the gateway's alone.
func trustEnv(env map[string]string) {
	for _, v := range []string{
		"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO", "AWS_CA_BUNDLE",
		"CARGO_HTTP_CAINFO", "NIX_SSL_CERT_FILE", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "COMPOSER_CAFILE",
	} {
		env[v] = fileBundle
	}
	env["NODE_EXTRA_CA_CERTS"], env["DENO_CERT"] = fileCA, fileCA
}

// plugIn prepares the files of a sandbox for its link: where names are looked
// up, and whom programs trust.
func (in *Instance) plugIn(ctx context.Context, l *Link) error {
	if err := in.put(ctx, fileResolv, "nameserver "+l.DNS.String()+"\noptions timeout:5 attempts:2\n"); err != nil {
		return err
	}
	if len(l.CA) == 0 {
		return nil
	}
	if err := in.put(ctx, fileCA, string(l.CA)); err != nil {
		return err
	}
	var all []byte
	for _, b := range bundles {
		old, err := in.bundle(ctx, b)
		if err != nil {
			return err
		}
		if old == nil {
			continue
		}
		if all == nil {
			all = old
		}
		if !bytes.Contains(old, l.CA) { // as through a link to one that is done
			if err := in.put(ctx, b, string(withCA(old, l.CA))); err != nil {
				return err
			}
		}
	}
	if err := in.put(ctx, fileBundle, string(withCA(all, l.CA))); err != nil {
		return err
	}
	if all == nil {
		return in.put(ctx, bundles[0], string(l.CA))
	}
	return nil
}

func withCA(bundle, ca []byte) []byte {
	bundle = bytes.TrimRight(bundle, "\n")
	if len(bundle) > 0 {
		bundle = append(bundle, '\n')
	}
	return append(bundle, ca...)
}

// bundle reads the authorities in a file, nil if there is none that could hold
// some.
func (in *Instance) bundle(ctx context.Context, path string) ([]byte, error) {
	r, info, err := in.client.Read(ctx, path, driver.ReadOptions{})
	switch sandbox.CodeOf(err) {
	case "":
	case sandbox.CodeNotFound, sandbox.CodeInvalid, sandbox.CodeDenied:
		return nil, nil
	default:
		return nil, err
	}
	defer r.Close()
	if info.Size > maxBundle {
		return nil, nil
	}
	return io.ReadAll(io.LimitReader(r, maxBundle))
}

// put writes a file of root's that everybody may read. A link in its place may
// lead to where nobody can write, and is replaced.
func (in *Instance) put(ctx context.Context, path, content string) error {
	opts := driver.WriteOptions{Mode: 0o644, Owner: "0:0"}
	_, err := in.client.Write(ctx, path, bytes.NewReader([]byte(content)), opts)
	if err != nil {
		if rerr := in.client.Remove(ctx, path, false); rerr != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		_, err = in.client.Write(ctx, path, bytes.NewReader([]byte(content)), opts)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
