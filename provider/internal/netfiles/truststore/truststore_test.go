package truststore

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// The stores in testdata come from keytool: cacerts.jks and key.jks of JDK 17,
// cacerts.p12, without a password, of JDK 25. They contain valid digests: a
// store that is unchanged after adding and removing an entry was parsed
// correctly.
func fixture(tb testing.TB, name string) []byte {
	tb.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

var authority = bytes.Repeat([]byte{0x30, 0x82, 7}, 200) // is never parsed

func TestAddAndRemove(t *testing.T) {
	for _, name := range []string{"cacerts.jks", "key.jks", "cacerts.p12"} {
		t.Run(name, func(t *testing.T) {
			old, root := fixture(t, name), fixture(t, "root1.der")
			with, err := Add(old, authority)
			if err != nil || !bytes.Contains(with, authority) || !bytes.Contains(with, root) {
				t.Fatalf("%v: the certificate or another one is not there", err)
			}
			if again, err := Add(with, authority); err != nil || !bytes.Equal(again, with) {
				t.Errorf("adding it again changed the store: %v", err)
			}
			if without, err := Remove(with, authority); err != nil || !bytes.Equal(without, old) {
				t.Errorf("removing it did not give back what was: %v", err)
			}
			if same, err := Remove(old, authority); err != nil || !bytes.Equal(same, old) {
				t.Errorf("removing what is not there changed the store: %v", err)
			}
			if none, err := Remove(with, root); err != nil || bytes.Contains(none, root) || !bytes.Contains(none, authority) {
				t.Errorf("removing another one: %v", err)
			}
		})
	}
}

func TestOtherForms(t *testing.T) {
	jks := fixture(t, "cacerts.jks")
	more := bytes.Clone(jks)
	more[11]++ // entries
	for name, store := range map[string][]byte{
		"empty": nil, "with a password": fixture(t, "password.p12"), "text": []byte("not a store"), "cut": jks[:len(jks)-30],
		"a number that does not fit": more, "only a head": jks[:12], "another version": append([]byte{0xfe, 0xed, 0xfe, 0xed, 0, 0, 0, 9}, jks[8:]...),
	} {
		if out, err := Add(store, authority); !errors.Is(err, ErrForm) {
			t.Errorf("%s: %d bytes, %v", name, len(out), err)
		}
	}
}

// FuzzAdd searches for files that crash Add or that Add damages.
func FuzzAdd(f *testing.F) {
	for _, name := range []string{"cacerts.jks", "key.jks", "cacerts.p12", "password.p12"} {
		f.Add(fixture(f, name))
	}
	f.Fuzz(func(t *testing.T, store []byte) {
		with, err := Add(store, authority)
		if err != nil || bytes.Contains(store, authority) {
			return
		}
		if len(with) < len(store)-64 { // DER may be longer than it has to be
			t.Errorf("%d bytes became %d", len(store), len(with))
		}
		if _, err := Remove(with, authority); err != nil {
			t.Errorf("the new store cannot be parsed: %v", err)
		}
	})
}
