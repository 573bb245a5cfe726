package netfiles

import (
	"bytes"
	"context"
	"encoding/pem"
	"path"
	"slices"
	"sync"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/internal/netfiles/truststore"
	"github.com/atoll-run/atoll/sandbox"
)

// Java has no variable for trusted authorities that does not print a line on
// every start. So the trust store files are changed: the one of the
// distribution, to which its Java packages link, and those of Java
// installations from elsewhere.
var (
	javaStores = []string{
		"/etc/ssl/certs/java/cacerts",                     // Debian, Ubuntu, Alpine, Arch
		"/etc/pki/ca-trust/extracted/java/cacerts",        // Fedora, RHEL
		"/etc/pki/java/cacerts",                           // a link to the line above
		"/var/lib/ca-certificates/java-cacerts",           // SUSE
		"/etc/ca-certificates/extracted/java-cacerts.jks", // Arch, the target of the first line
	}
	// javaParents are the directories in which Java is usually unpacked.
	javaParents = []string{"/usr/lib/jvm", "/opt/java", "/opt", "/usr/java", "/usr/local"}
	// javaTrust are the paths of the trust store in a Java home; the second is JDK
	// 8's.
	javaTrust = []string{"lib/security/cacerts", "jre/lib/security/cacerts"}
)

// maxHomes limits how many directories are searched for Java.
const maxHomes = 64

// trustInJava adds an authority to the trust stores of all Java installations.
// It skips a store that cannot be written or parsed.
func (n Files) trustInJava(ctx context.Context, home string, ca []byte) error {
	block, _ := pem.Decode(ca)
	if block == nil {
		return nil
	}
	stores := slices.Clone(javaStores)
	for _, h := range n.javaHomes(ctx, home) {
		for _, name := range javaTrust {
			stores = append(stores, path.Join(h, name))
		}
	}
	// The distribution's stores come first, because other stores may be links to
	// them.
	for _, group := range [][]string{stores[:len(javaStores)], stores[len(javaStores):]} {
		if err := together(group, func(name string) error { return n.trustInStore(ctx, name, block.Bytes) }); err != nil {
			return err
		}
	}
	return nil
}

// javaHomes returns directories that may contain a Java installation.
func (n Files) javaHomes(ctx context.Context, home string) []string {
	var mu sync.Mutex
	var homes []string
	_ = together(javaParents, func(dir string) error {
		for e, err := range n.Client.List(ctx, dir, driver.ListOptions{}) {
			if err != nil {
				return nil //nolint:nilerr // it is missing, or the next call will fail
			}
			if e.Type == sandbox.TypeDir { // links usually lead to another entry
				mu.Lock()
				homes = append(homes, path.Join(dir, e.Path))
				mu.Unlock()
			}
		}
		return nil
	})
	slices.Sort(homes)
	homes = homes[:min(len(homes), maxHomes)]
	if path.IsAbs(home) && !slices.Contains(homes, path.Clean(home)) {
		homes = append(homes, path.Clean(home))
	}
	return homes
}

// trustInStore adds a certificate, in DER, to one store, if the store exists
// and is not a link to one that has it already.
func (n Files) trustInStore(ctx context.Context, name string, cert []byte) error {
	info, err := n.Client.Stat(ctx, name)
	if err != nil || slices.Contains(javaStores, info.Target) {
		return refusedIsFine(err)
	}
	old, err := n.bundle(ctx, name)
	if old == nil || err != nil {
		return err
	}
	with, err := truststore.Add(old, cert)
	if err != nil || bytes.Equal(with, old) {
		return nil //nolint:nilerr // an unknown format is left alone
	}
	_, err = n.Client.Write(ctx, name, bytes.NewReader(with), driver.WriteOptions{NoParents: true})
	return refusedIsFine(err)
}

// refusedIsFine ignores the sandbox's refusal of a write, for example to a
// read-only mount, because nothing can be done about it.
func refusedIsFine(err error) error {
	switch sandbox.CodeOf(err) {
	case sandbox.CodeDenied, sandbox.CodeNotFound, sandbox.CodeInvalid, sandbox.CodeAlreadyExists, sandbox.CodeConflict:
		return nil
	}
	return err
}

// together calls f for all names concurrently and returns the first error.
func together(names []string, f func(string) error) error {
	errs := make(chan error, len(names))
	for _, n := range names {
		go func() { errs <- f(n) }()
	}
	var first error
	for range names {
		if err := <-errs; first == nil {
			first = err
		}
	}
	return first
}

// isJavaStore reports whether a file may be a Java trust store.
func isJavaStore(name string) bool {
	return slices.Contains(javaStores, name) || path.Base(name) == "cacerts"
}

// withoutJava returns a trust store without an authority, in PEM.
func withoutJava(store, ca []byte) []byte {
	block, _ := pem.Decode(ca)
	if block == nil {
		return store
	}
	clean, err := truststore.Remove(store, block.Bytes)
	if err != nil {
		return store // an unknown format: nothing was added to it
	}
	return clean
}
