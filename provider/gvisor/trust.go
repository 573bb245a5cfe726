package gvisor

import (
	"archive/tar"
	"bufio"
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
	fileCA       = "/etc/atoll/ca.crt"        // the gateway's authority alone
	fileBundle   = "/etc/atoll/ca-bundle.crt" // and all authorities that the image trusts
	maxBundle    = 8 << 20
)

// bundles are the distributions' files of trusted authorities.
var bundles = []string{
	"/etc/ssl/certs/ca-certificates.crt", // Debian, Alpine, Arch, Gentoo
	"/etc/pki/tls/certs/ca-bundle.crt",   // Fedora, RHEL
	"/etc/ssl/ca-bundle.pem",             // SUSE
	"/etc/ssl/cert.pem",                  // OpenSSL's default
}

// trustEnv sets the variables of programs that have their own list of
// authorities. Programs that add to their list get only the gateway's.
func trustEnv(env map[string]string) {
	for _, v := range []string{
		"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO", "AWS_CA_BUNDLE",
		"CARGO_HTTP_CAINFO", "NIX_SSL_CERT_FILE", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "COMPOSER_CAFILE",
	} {
		env[v] = fileBundle
	}
	env["NODE_EXTRA_CA_CERTS"], env["DENO_CERT"] = fileCA, fileCA
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

// networkFiles writes the files that programs in a sandbox need for its network
// link: the address of its name server, and its certificate authority wherever
// programs look for authorities.
type networkFiles struct {
	client   *guest.Client
	mounts   []sandbox.Mount // whose files stay as they are
	restored bool            // the files are those of a snapshot
}

// plugIn prepares the files of a sandbox for its link: the name server, and the
// trusted authorities. javaHome is the image's JAVA_HOME.
func (n networkFiles) plugIn(ctx context.Context, l *Link, javaHome string) error {
	if err := n.nameServer(ctx, "nameserver "+l.DNS.String()+resolvOptions); err != nil {
		return err
	}
	if len(l.CA) == 0 {
		return nil
	}
	if err := n.put(ctx, fileCA, string(l.CA)); err != nil {
		return err
	}
	java := make(chan error, 1)
	go func() { java <- errors.Join(n.trustInJava(ctx, javaHome, l.CA), n.anchor(ctx, l.CA)) }()
	return errors.Join(n.trustInBundles(ctx, l.CA), <-java)
}

const resolvOptions = "\noptions timeout:5 attempts:2\n"

// nameServer writes resolv.conf, unless it is mounted or a program inside has
// written another one.
func (n networkFiles) nameServer(ctx context.Context, text string) error {
	if slices.ContainsFunc(n.mounts, func(m sandbox.Mount) bool { return covers(m.Target, fileResolv) }) {
		return nil
	}
	if n.restored {
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
func (n networkFiles) anchor(ctx context.Context, ca []byte) error {
	return together(anchors, func(name string) error {
		opts := driver.WriteOptions{Mode: 0o644, Owner: "0:0", NoParents: name != anchors[0]}
		_, err := n.client.Write(ctx, name, bytes.NewReader(ca), opts)
		return refusedIsFine(err)
	})
}

// trustInBundles adds an authority to the files of trusted authorities.
func (n networkFiles) trustInBundles(ctx context.Context, ca []byte) error {
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

// authority finds the gateway's certificate in the kernel's list of a sandbox's
// files. It returns nil if there is none.
func authority(tree io.ReadSeeker, upper io.ReaderAt) ([]byte, error) {
	if _, err := tree.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	for tr := tar.NewReader(bufio.NewReaderSize(tree, 1<<16)); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("the kernel's list of files: %w", err)
		}
		if path.Join("/", h.Name) != fileCA || h.Typeflag != tar.TypeReg {
			continue
		}
		size, segments, err := readSegments(tr, h.Size)
		if err != nil || size > maxBundle {
			return nil, err
		}
		var ca bytes.Buffer
		err = content{size, segments, upper}.writeTo(&ca)
		return ca.Bytes(), err
	}
}

// provided reports whether the runtime provides a file for each sandbox, so that
// it belongs into no image.
func provided(name string) bool {
	return name == fileHosts || name == fileHostname || name == fileResolv
}

// plugged reports whether a file exists only for this sandbox and its link.
func plugged(name string) bool {
	return provided(name) || name == path.Dir(fileCA) || slices.Contains(anchors, name) || strings.HasPrefix(name, path.Dir(fileCA)+"/")
}

// unplugged writes files without the gateway's authority. It belongs to a
// sandbox and its copies, and others must not trust it.
func unplugged(ca []byte) func(*tar.Writer, *tar.Header, content) error {
	return func(tw *tar.Writer, h *tar.Header, c content) error {
		name := path.Join("/", h.Name)
		java := isJavaStore(name)
		if !java && !slices.Contains(bundles, name) || c.size > maxBundle {
			return whole(tw, h, c)
		}
		var b bytes.Buffer
		if err := c.writeTo(&b); err != nil {
			return err
		}
		clean := b.Bytes()
		if java {
			clean = withoutJava(clean, ca)
		} else {
			clean = bytes.ReplaceAll(clean, ca, nil)
		}
		h.Size = int64(len(clean))
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		_, err := tw.Write(clean)
		return err
	}
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
func (n networkFiles) bundle(ctx context.Context, name string) ([]byte, error) {
	r, info, err := n.client.Read(ctx, name, driver.ReadOptions{})
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

// put writes a file that root owns and every user may read. It replaces a link,
// whose target may not be writable.
func (n networkFiles) put(ctx context.Context, path, content string) error {
	opts := driver.WriteOptions{Mode: 0o644, Owner: "0:0"}
	_, err := n.client.Write(ctx, path, bytes.NewReader([]byte(content)), opts)
	if err != nil {
		if rerr := n.client.Remove(ctx, path, false); rerr != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		_, err = n.client.Write(ctx, path, bytes.NewReader([]byte(content)), opts)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
