package gvisor

import (
	"bytes"
	"context"
	"encoding/pem"
	"path"
	"slices"
	"sync"

	"github.com/atoll-run/atoll/driver"
	"github.com/atoll-run/atoll/provider/gvisor/truststore"
	"github.com/atoll-run/atoll/sandbox"
)

// Java looks at no variable that would not make it print a line about it with
// every start. So the file is changed in which it keeps the authorities that it
// trusts: that of the distribution, to which its packages of Java link, and
// those that a Java from elsewhere brings along.
var (
	javaStores = []string{
		"/etc/ssl/certs/java/cacerts",                     // Debian, Ubuntu, Alpine, Arch
		"/etc/pki/ca-trust/extracted/java/cacerts",        // Fedora, RHEL
		"/etc/pki/java/cacerts",                           // a link to that
		"/var/lib/ca-certificates/java-cacerts",           // SUSE
		"/etc/ca-certificates/extracted/java-cacerts.jks", // Arch, where the first leads
	}
	// javaParents are where a Java is unpacked to, under a name of its own.
	javaParents = []string{"/usr/lib/jvm", "/opt/java", "/opt", "/usr/java", "/usr/local"}
	// javaTrust is where it has its store, JDK 8 the second.
	javaTrust = []string{"lib/security/cacerts", "jre/lib/security/cacerts"}
)

// maxHomes bounds how many directories are looked at for a Java.
const maxHomes = 64

// trustInJava adds an authority to the trust stores of every Java. A store that
// cannot be written or understood is left alone: its Java trusts whom it did.
func (in *Instance) trustInJava(ctx context.Context, home string, ca []byte) error {
	block, _ := pem.Decode(ca)
	if block == nil {
		return nil
	}
	stores := slices.Clone(javaStores)
	for _, h := range in.javaHomes(ctx, home) {
		for _, name := range javaTrust {
			stores = append(stores, path.Join(h, name))
		}
	}
	// The distribution's come first. Stores that others link to then have the
	// authority.
	for _, group := range [][]string{stores[:len(javaStores)], stores[len(javaStores):]} {
		if err := together(group, func(name string) error { return in.trustInStore(ctx, name, block.Bytes) }); err != nil {
			return err
		}
	}
	return nil
}

// javaHomes are the directories in which there may be a Java.
func (in *Instance) javaHomes(ctx context.Context, home string) []string {
	var mu sync.Mutex
	var homes []string
	_ = together(javaParents, func(dir string) error {
		for e, err := range in.client.List(ctx, dir, driver.ListOptions{}) {
			if err != nil {
				return nil //nolint:nilerr // it is not there, or the next call will say
			}
			if e.Type == sandbox.TypeDir { // a link leads to one of its neighbours
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

// trustInStore adds a certificate, in DER, to one store, if it is there and not a
// link to one that is done.
func (in *Instance) trustInStore(ctx context.Context, name string, cert []byte) error {
	info, err := in.client.Stat(ctx, name)
	if err != nil || slices.Contains(javaStores, info.Target) {
		return refusedIsFine(err)
	}
	old, err := in.bundle(ctx, name)
	if old == nil || err != nil {
		return err
	}
	with, err := truststore.Add(old, cert)
	if err != nil || bytes.Equal(with, old) {
		return nil //nolint:nilerr // not for us to judge
	}
	_, err = in.client.Write(ctx, name, bytes.NewReader(with), driver.WriteOptions{NoParents: true})
	return refusedIsFine(err)
}

// refusedIsFine takes the sandbox's own refusal of a write, as to a file that is
// shown read-only, for nothing that could be done about.
func refusedIsFine(err error) error {
	switch sandbox.CodeOf(err) {
	case sandbox.CodeDenied, sandbox.CodeNotFound, sandbox.CodeInvalid, sandbox.CodeAlreadyExists, sandbox.CodeConflict:
		return nil
	}
	return err
}

// together calls f for all names at once, and returns the first error.
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

// isJavaStore reports whether a file may be a trust store of Java's.
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
		return store // we have put nothing into it, then
	}
	return clean
}
