package secret

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"html"
	"io"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"
)

// pieces is a reader that returns at most n bytes at a time.
type pieces struct {
	b []byte
	n int
}

func (p *pieces) Read(b []byte) (int, error) {
	if len(p.b) == 0 {
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), p.n)], p.b)
	p.b = p.b[n:]
	return n, nil
}

// In any encoding that a server may echo, and wherever it is cut, no part of a
// value passes.
func TestScrubForms(t *testing.T) {
	v := NewValue([]byte(canary))
	s := NewScrubber(v, NewValue([]byte("another-secret-value")))
	quoted, err := json.Marshal("a" + canary + "b")
	if err != nil {
		t.Fatal(err)
	}
	messages := map[string]string{
		"raw": canary, "query": "?k=" + url.QueryEscape(canary), "path": "/" + url.PathEscape(canary), "json": string(quoted),
		"html": html.EscapeString(canary), "hex": hex.EncodeToString([]byte(canary)), "HEX": strings.ToUpper(hex.EncodeToString([]byte(canary))),
		"lower": strings.ToLower(url.QueryEscape("=/")) + string(lowerEscapes(url.QueryEscape(canary))),
		"twice": canary + canary, "both": canary + "another-secret-value" + canary[:9],
	}
	for _, before := range []string{"", "u", "us", "use", "user:"} {
		for _, after := range []string{"", "!", "!!"} {
			messages["b64 "+before+after] = base64.StdEncoding.EncodeToString([]byte(before + canary + after))
			messages["url64 "+before+after] = base64.URLEncoding.EncodeToString([]byte(before + canary + after))
		}
	}
	for name, m := range messages {
		m = "HTTP/1.1 200 OK\r\n" + m + "\r\nend"
		whole := string(s.Bytes([]byte(m)))
		if whole == m || len(whole) != len(m) || !strings.HasSuffix(whole, "\r\nend") {
			t.Errorf("%s: %q became %q", name, m, whole)
		}
		if _, n := s.m.Find([]byte(whole)); n >= 0 {
			t.Errorf("%s: still in %q", name, whole)
		}
		for cut := 1; cut <= 7; cut++ {
			out, err := io.ReadAll(s.Reader(&pieces{[]byte(m), cut}))
			if err != nil || string(out) != whole {
				t.Errorf("%s, %d bytes at a time: %q, %v", name, cut, out, err)
			}
		}
	}
}

func TestReaderErrors(t *testing.T) {
	m := NewMatcher([][]byte{[]byte("needle"), []byte("needles-and-pins")})
	mark := func(int) ([]byte, error) { return []byte("#"), nil }
	broken := errors.New("broken")
	out, err := io.ReadAll(m.Reader(io.MultiReader(strings.NewReader("hay needle hay needles-and-pin"), iotest.ErrReader(broken)), mark))
	if string(out) != "hay # hay #s-and-pin" || !errors.Is(err, broken) {
		t.Errorf("%q %v", out, err)
	}
	out, err = io.ReadAll(m.Reader(strings.NewReader("hay needles-and-pins needle!"), func(n int) ([]byte, error) {
		if n == 0 {
			return nil, broken
		}
		return nil, nil
	}))
	if string(out) != "hay  " || !errors.Is(err, broken) {
		t.Errorf("%q %v", out, err)
	}
	if out, err := io.ReadAll(NewMatcher(nil).Reader(strings.NewReader("x"), nil)); string(out) != "x" || err != nil {
		t.Errorf("%q %v", out, err)
	}
}

// naive replaces the longest needle at the first place there is one, as
// slowly as can be.
func naive(b []byte, needles [][]byte) []byte {
	var out []byte
	for i := 0; i < len(b); {
		best := 0
		for _, n := range needles {
			if len(n) >= MinScrub && len(n) > best && bytes.HasPrefix(b[i:], n) {
				best = len(n)
			}
		}
		if best == 0 {
			out = append(out, b[i])
			i++
			continue
		}
		out = append(out, bytes.Repeat([]byte{'*'}, best)...)
		i += best
	}
	return out
}

// TestAttackSecretWithinSecret: a server sends a value that holds another one, and
// cuts it where the inner one is whole and the outer one is not. Nothing of the
// outer one is shown.
func TestAttackSecretWithinSecret(t *testing.T) {
	outer, inner := "begin-password-and-more", "password"
	s := NewScrubber(NewValue([]byte(inner)), NewValue([]byte(outer)))
	text := "x " + outer + " y"
	for cut := range len(text) {
		r := io.MultiReader(strings.NewReader(text[:cut]), strings.NewReader(text[cut:]))
		if out, err := io.ReadAll(s.Reader(r)); err != nil || string(out) != "x "+strings.Repeat("*", len(outer))+" y" {
			t.Errorf("cut after %d bytes: %q, %v", cut, out, err)
		}
		red := NewRedactor(NewValue([]byte(inner)), NewValue([]byte(outer))).Stream(false)
		if out := redactAll(red, text[:cut], text[cut:]); strings.Contains(out, "more") || len(out) != len(text) {
			t.Errorf("output cut after %d bytes: %q", cut, out)
		}
	}
}

// The stream, in any pieces, says what the slow and obvious way says.
func FuzzReader(f *testing.F) {
	f.Add([]byte("xx-abcdefabcdefgh-abcdef"), []byte("abcdef"), []byte("abcdefgh"), 3)
	f.Add([]byte("(((((((aaaaaaaaa"), []byte("aaaaaa"), []byte("(aaaaaaa"), 1)
	f.Add([]byte("aaaaaaaaaaaaaaaaa"), []byte("aaaaaa"), []byte("aaaaaaaab"), 1)
	f.Fuzz(func(t *testing.T, text, a, b []byte, cut int) {
		if cut < 1 || len(text) > 1<<12 {
			return
		}
		needles := [][]byte{a, b}
		m := NewMatcher(needles)
		got, err := io.ReadAll(m.Reader(&pieces{text, cut}, func(n int) ([]byte, error) { return bytes.Repeat([]byte{'*'}, len(needles[n])), nil }))
		if want := naive(text, needles); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%q is not %q (%v)", got, want, err)
		}
		if got := m.Replace(text, func(n int) []byte { return bytes.Repeat([]byte{'*'}, len(needles[n])) }); !bytes.Equal(got, naive(text, needles)) {
			t.Errorf("at once: %q", got)
		}
	})
}

func BenchmarkScrub(b *testing.B) {
	s := NewScrubber(NewValue([]byte("ghp_0123456789abcdefghijklmnopqrstuvwxyz")), NewValue([]byte(canary)))
	text := bytes.Repeat([]byte("the quick brown fox jumps over the lazy dog, ghastly canaries sing; "), 1<<14)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if _, err := io.Copy(io.Discard, s.Reader(bytes.NewReader(text))); err != nil {
			b.Fatal(err)
		}
	}
}
