// Package truststore adds a certificate to Java's files of trusted authorities,
// and removes it.
//
// Such a file is a JKS, or a PKCS #12 without a password, the default since JDK
// 18. Neither is encrypted, and both need only one entry added beside the
// others: the rest of the file stays unchanged byte by byte. A PKCS #12 with a
// password is not touched: the file sets the cost of deriving a key from the
// password, and files of sandboxes are untrusted.
package truststore

import (
	"bytes"
	"errors"
	"slices"
)

// ErrForm means that a file is not a trust store of a supported format.
var ErrForm = errors.New("neither a JKS nor a PKCS #12 without a password")

// Alias is the name of the entry that Add creates.
const Alias = "atoll-gateway"

// Add returns the store with a certificate, in DER, that is trusted for all
// purposes. It returns the store unchanged if that contains the certificate.
func Add(store, cert []byte) ([]byte, error) {
	if bytes.Contains(store, cert) {
		return store, nil
	}
	return edit(store, cert, func(entries [][]byte, own []byte) [][]byte { return append(entries, own) })
}

// Remove returns the store without the entries that contain the certificate.
func Remove(store, cert []byte) ([]byte, error) {
	if !bytes.Contains(store, cert) {
		return store, nil
	}
	return edit(store, cert, func(entries [][]byte, _ []byte) [][]byte {
		return slices.DeleteFunc(entries, func(e []byte) bool { return bytes.Contains(e, cert) })
	})
}

// change returns the new list of entries. own is an entry for the certificate
// in the store's format.
type change func(entries [][]byte, own []byte) [][]byte

func edit(store, cert []byte, f change) ([]byte, error) {
	if bytes.HasPrefix(store, jksMagic) {
		return editJKS(store, cert, f)
	}
	return editPKCS12(store, cert, f)
}
