// Package netfiles writes the files that programs in a sandbox with a network
// need: the address of its name server, and its certificate authority wherever
// programs look for authorities.
package netfiles

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/internal/guest"
	"github.com/atoll-run/atoll/sandbox"
)

// Files of a sandbox with a network. The directory contains no secrets.
const (
	fileHosts    = "/etc/hosts"
	fileHostname = "/etc/hostname"
	fileResolv   = "/etc/resolv.conf"
	FileCA       = "/etc/atoll/ca.crt"        // the gateway's authority alone
	fileBundle   = "/etc/atoll/ca-bundle.crt" // and all authorities that the image trusts
	MaxBundle    = 8 << 20
)

// bundles are the distributions' files of trusted authorities.
var bundles = []string{
	"/etc/ssl/certs/ca-certificates.crt", // Debian, Alpine, Arch, Gentoo
	"/etc/pki/tls/certs/ca-bundle.crt",   // Fedora, RHEL
	"/etc/ssl/ca-bundle.pem",             // SUSE
	"/etc/ssl/cert.pem",                  // OpenSSL's default
}

// TrustEnv sets the variables of programs that have their own list of
// authorities. Programs that add to their list get only the gateway's.
func TrustEnv(env map[string]string) {
	for _, v := range []string{
		"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO", "AWS_CA_BUNDLE",
		"CARGO_HTTP_CAINFO", "NIX_SSL_CERT_FILE", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "COMPOSER_CAFILE",
	} {
		env[v] = fileBundle
	}
	env["NODE_EXTRA_CA_CERTS"], env["DENO_CERT"] = FileCA, FileCA
}

// anchors are the directories in which distributions look for additional
// authorities when they regenerate those files, for example on installing a
// package. Only the directories of the first are created if missing: the
// ca-certificates package of Debian and Alpine looks there when it is
// installed.
var anchors = []string{
	"/usr/local/share/ca-certificates/atoll-gateway.crt",
	"/etc/pki/ca-trust/source/anchors/atoll-gateway.crt",          // Fedora, RHEL
	"/etc/pki/trust/anchors/atoll-gateway.crt",                    // SUSE
	"/etc/ca-certificates/trust-source/anchors/atoll-gateway.crt", // Arch
}

// Network is what programs in a sandbox must know about it.
type Network struct {
	DNS netip.Addr // the name server
	CA  []byte     // PEM, of the authority that they should trust; empty: none
}

// Files writes the files of a sandbox.
type Files struct {
	Client   *guest.Client
	Mounts   []sandbox.Mount // whose files stay as they are
	Restored bool            // the files are those of a snapshot
}

// PlugIn prepares the files of a sandbox for its link: the name server, and the
// trusted authorities. javaHome is the image's JAVA_HOME.
func (n Files) PlugIn(ctx context.Context, l *Network, javaHome string) error {
	if err := n.NameServer(ctx, "nameserver "+l.DNS.String()+resolvOptions); err != nil {
		return err
	}
	if len(l.CA) == 0 {
		return nil
	}
	return n.Trust(ctx, l.CA, javaHome)
}

// Trust makes programs trust an authority, in PEM. javaHome is as for PlugIn.
func (n Files) Trust(ctx context.Context, ca []byte, javaHome string) error {
	if err := n.put(ctx, FileCA, string(ca)); err != nil {
		return err
	}
	java := make(chan error, 1)
	go func() { java <- errors.Join(n.trustInJava(ctx, javaHome, ca), n.anchor(ctx, ca)) }()
	return errors.Join(n.trustInBundles(ctx, ca), <-java)
}

const resolvOptions = "\noptions timeout:5 attempts:2\n"

// NameServer writes resolv.conf, unless it is mounted or a program inside has
// written another one.
func (n Files) NameServer(ctx context.Context, text string) error {
	if slices.ContainsFunc(n.Mounts, func(m sandbox.Mount) bool { return covers(m.Target, fileResolv) }) {
		return nil
	}
	if n.Restored {
		old, err := n.bundle(ctx, fileResolv)
		if err != nil {
			return err
		}
		server, ours := strings.CutSuffix(string(old), resolvOptions)
		_, addr, _ := strings.Cut(server, " ")
		if _, err := netip.ParseAddr(addr); len(old) > 0 && (!ours || err != nil) || string(old) == text && old != nil {
			return nil
		}
	}
	return n.put(ctx, fileResolv, text)
}

// covers reports whether a file is the target of a mount or below it.
func covers(target, file string) bool {
	target = path.Clean(target)
	return target == file || strings.HasPrefix(file, strings.TrimSuffix(target, "/")+"/")
}

// anchor adds the authority to the sources of regenerated bundles.
func (n Files) anchor(ctx context.Context, ca []byte) error {
	return together(anchors, func(name string) error {
		opts := driver.WriteOptions{Mode: 0o644, Owner: "0:0", NoParents: name != anchors[0]}
		_, err := n.Client.Write(ctx, name, bytes.NewReader(ca), opts)
		return refusedIsFine(err)
	})
}

// trustInBundles adds an authority to the files of trusted authorities.
func (n Files) trustInBundles(ctx context.Context, ca []byte) error {
	var all []byte
	for _, b := range bundles {
		old, err := n.bundle(ctx, b)
		if err != nil {
			return err
		}
		if old == nil {
			continue
		}
		if all == nil {
			all = old
		}
		if bytes.Contains(old, ca) { // for example a link to one that is done, or a restored file
			continue
		}
		if err := n.put(ctx, b, string(withCA(old, ca))); err != nil {
			return err
		}
	}
	if err := n.put(ctx, fileBundle, string(withCA(all, ca))); err != nil {
		return err
	}
	if all == nil {
		return n.put(ctx, bundles[0], string(ca))
	}
	return nil
}

// Provided reports whether the runtime provides a file for each sandbox, so that
// it belongs into no image.
func Provided(name string) bool {
	return name == fileHosts || name == fileHostname || name == fileResolv
}

// Plugged reports whether a file exists only for this sandbox and its link.
func Plugged(name string) bool {
	return Provided(name) || name == path.Dir(FileCA) || slices.Contains(anchors, name) || strings.HasPrefix(name, path.Dir(FileCA)+"/")
}

// withCA adds an authority unless the bundle contains it already.
func withCA(bundle, ca []byte) []byte {
	if bytes.Contains(bundle, ca) {
		return bundle
	}
	bundle = bytes.TrimRight(bundle, "\n")
	if len(bundle) > 0 {
		bundle = append(bundle, '\n')
	}
	return append(bundle, ca...)
}

// bundle reads a file of authorities. It returns nil if there is no such file
// or if it cannot be one.
func (n Files) bundle(ctx context.Context, name string) ([]byte, error) {
	r, info, err := n.Client.Read(ctx, name, driver.ReadOptions{})
	switch sandbox.CodeOf(err) {
	case "":
	case sandbox.CodeNotFound, sandbox.CodeInvalid, sandbox.CodeDenied:
		return nil, nil
	default:
		return nil, err
	}
	defer r.Close()
	if info.Size > MaxBundle {
		return nil, nil
	}
	return io.ReadAll(io.LimitReader(r, MaxBundle))
}

// put writes a file that root owns and every user may read. It replaces a link,
// whose target may not be writable.
func (n Files) put(ctx context.Context, path, content string) error {
	opts := driver.WriteOptions{Mode: 0o644, Owner: "0:0"}
	_, err := n.Client.Write(ctx, path, bytes.NewReader([]byte(content)), opts)
	if err != nil {
		if rerr := n.Client.Remove(ctx, path, false); rerr != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		_, err = n.Client.Write(ctx, path, bytes.NewReader([]byte(content)), opts)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// IsTrust reports whether a file may have the gateway's authority beside others,
// see [Without].
func IsTrust(name string) bool { return isJavaStore(name) || slices.Contains(bundles, name) }

// Without returns a file of authorities without one, in PEM.
func Without(name string, content, ca []byte) []byte {
	if isJavaStore(name) {
		return withoutJava(content, ca)
	}
	return bytes.ReplaceAll(content, ca, nil)
}
