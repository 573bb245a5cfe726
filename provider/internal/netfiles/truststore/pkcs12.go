package truststore

import (
	"encoding/asn1"
	"slices"
	"unicode/utf16"
)

// A PKCS #12 without a password (RFC 7292) has this structure:
//
//	PFX         SEQUENCE { version 3, ContentInfo of AuthenticatedSafe }    no MAC
//	ContentInfo SEQUENCE { data, [0] { OCTET STRING } }
//	AuthenticatedSafe    SEQUENCE OF ContentInfo, each of SafeContents
//	SafeContents         SEQUENCE OF SafeBag
//	SafeBag     SEQUENCE { certBag, [0] { CertBag }, SET OF Attribute }
//
// Java trusts a certificate if its bag has an attribute of Oracle's that lists
// the purposes.
var (
	oidData         = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 7, 1}
	oidCertBag      = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 12, 10, 1, 3}
	oidX509         = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 22, 1}
	oidFriendlyName = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 20}
	oidTrustedUsage = asn1.ObjectIdentifier{2, 16, 840, 1, 113894, 746875, 1, 1}
	oidAnyUsage     = asn1.ObjectIdentifier{2, 5, 29, 37, 0}
)

func editPKCS12(store, cert []byte, f change) ([]byte, error) {
	pfx, err := elements(store)
	if err != nil || len(pfx) != 2 { // a third element is a MAC
		return nil, ErrForm
	}
	safes, err := contents(pfx[1])
	if err != nil || len(safes) == 0 {
		return nil, ErrForm
	}
	for i, s := range safes {
		bags, err := contents(s)
		if err != nil {
			return nil, err
		}
		own := certBag(cert)
		if i != len(safes)-1 { // added to the last one, removed from all
			own = nil
		}
		bags = slices.DeleteFunc(f(bags, own), func(b []byte) bool { return b == nil })
		safes[i] = contentInfo(bags)
	}
	return sequence(pfx[0], contentInfo(safes)), nil
}

// contents returns the elements of an unencrypted sequence in a ContentInfo.
func contents(info []byte) ([][]byte, error) {
	parts, err := elements(info)
	if err != nil || len(parts) != 2 {
		return nil, ErrForm
	}
	var kind asn1.ObjectIdentifier
	if rest, err := asn1.Unmarshal(parts[0], &kind); err != nil || len(rest) > 0 || !kind.Equal(oidData) {
		return nil, ErrForm
	}
	var wrap asn1.RawValue
	if rest, err := asn1.Unmarshal(parts[1], &wrap); err != nil || len(rest) > 0 || wrap.Class != asn1.ClassContextSpecific {
		return nil, ErrForm
	}
	var data []byte
	if rest, err := asn1.Unmarshal(wrap.Bytes, &data); err != nil || len(rest) > 0 {
		return nil, ErrForm
	}
	return elements(data)
}

// elements returns the elements of a sequence, each in its encoding.
func elements(der []byte) ([][]byte, error) {
	var all asn1.RawValue
	rest, err := asn1.Unmarshal(der, &all)
	if err != nil || len(rest) > 0 || all.Class != asn1.ClassUniversal || all.Tag != asn1.TagSequence {
		return nil, ErrForm
	}
	var parts [][]byte
	for rest = all.Bytes; len(rest) > 0; {
		var one asn1.RawValue
		if rest, err = asn1.Unmarshal(rest, &one); err != nil {
			return nil, ErrForm
		}
		parts = append(parts, one.FullBytes)
	}
	return parts, nil
}

func contentInfo(parts [][]byte) []byte {
	return sequence(encode(oidData), explicit(encode(sequence(parts...))))
}

func certBag(cert []byte) []byte {
	bag := sequence(encode(oidX509), explicit(encode(cert)))
	var name []byte
	for _, c := range utf16.Encode([]rune(Alias)) {
		name = append(name, byte(c>>8), byte(c))
	}
	attributes := [][]byte{
		attribute(oidFriendlyName, encode(asn1.RawValue{Tag: asn1.TagBMPString, Bytes: name})),
		attribute(oidTrustedUsage, encode(oidAnyUsage)),
	}
	return sequence(encode(oidCertBag), explicit(bag), compound(asn1.ClassUniversal, asn1.TagSet, attributes...))
}

func attribute(id asn1.ObjectIdentifier, value []byte) []byte {
	return sequence(encode(id), compound(asn1.ClassUniversal, asn1.TagSet, value))
}

func sequence(parts ...[]byte) []byte {
	return compound(asn1.ClassUniversal, asn1.TagSequence, parts...)
}

func explicit(part []byte) []byte { return compound(asn1.ClassContextSpecific, 0, part) }

func compound(class, tag int, parts ...[]byte) []byte {
	return encode(asn1.RawValue{Class: class, Tag: tag, IsCompound: true, Bytes: slices.Concat(parts...)})
}

// encode encodes values that can always be encoded.
func encode(v any) []byte {
	der, err := asn1.Marshal(v)
	if err != nil {
		panic("truststore: " + err.Error())
	}
	return der
}
