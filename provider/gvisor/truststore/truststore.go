// Package truststore adds a certificate to the files in which Java keeps the
// authorities that it trusts, and takes it out again.
//
// Such a file is a JKS, or a PKCS #12 without a password, as JDK 18 and later
// bring along. Nothing of either is encrypted, and neither form needs more than
// one entry put beside the others: what else the file holds stays as it is, byte
// by byte. A PKCS #12 with a password is not touched, since how long a password
// takes to be turned into a key is written in the file, and files of sandboxes
// are hostile.
package truststore

import (
	"bytes"
	"errors"
	"slices"
)

// ErrForm is that a file is no trust store of a form that is known here.
var ErrForm = errors.New("neither a JKS nor a PKCS #12 without a password")

// Alias names the entry that Add makes.
const Alias = "atoll-gateway"

// Add returns the store with a certificate, in DER, that is trusted for
// everything. A store that has it already is returned as it is.
func Add(store, cert []byte) ([]byte, error) {
	if bytes.Contains(store, cert) {
		return store, nil
	}
	return edit(store, cert, func(entries [][]byte, own []byte) [][]byte { return append(entries, own) })
}

// Remove returns the store without the entries that hold a certificate.
func Remove(store, cert []byte) ([]byte, error) {
	if !bytes.Contains(store, cert) {
		return store, nil
	}
	return edit(store, cert, func(entries [][]byte, _ []byte) [][]byte {
		return slices.DeleteFunc(entries, func(e []byte) bool { return bytes.Contains(e, cert) })
	})
}

// change makes other entries of those that there are. own is one for the
// certificate, in the form of the store.
type change func(entries [][]byte, own []byte) [][]byte

func edit(store, cert []byte, f change) ([]byte, error) {
	if bytes.HasPrefix(store, jksMagic) {
		return editJKS(store, cert, f)
	}
	return editPKCS12(store, cert, f)
}
