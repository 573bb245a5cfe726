package secret

import (
	"bytes"
	"encoding/base64"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// redactAll pushes pieces through a stream.
func redactAll(s *Redaction, pieces ...string) string {
	var out strings.Builder
	for _, p := range pieces {
		out.Write(s.Push([]byte(p)))
	}
	out.Write(s.End())
	return out.String()
}

func TestRedactEverySplit(t *testing.T) {
	const value = "tok-5ecr3t-value"
	encoded := base64.StdEncoding.EncodeToString([]byte("xy" + value))
	text := "before " + value + " between " + encoded + " tok-5ecr tok " + value + value + " after"
	r := NewRedactor(NewValue([]byte(value)))
	whole := redactAll(r.Stream(false), text)
	if len(whole) != len(text) || strings.Contains(whole, value) || strings.Contains(whole, encoded[4:20]) || !strings.HasSuffix(whole, " after") {
		t.Fatalf("%q became %q", text, whole)
	}
	for i := range len(text) {
		for j := i; j < len(text); j += 7 {
			got := redactAll(r.Stream(false), text[:i], text[i:j], text[j:])
			// At a cut, only a few characters may be visible.
			if len(got) != len(text) || strings.Contains(got, "5ecr3t") || !strings.Contains(got, " tok-5ecr tok ") || strings.Contains(got, encoded[6:20]) {
				t.Fatalf("cut at %d and %d: %q", i, j, got)
			}
		}
	}
}

func TestRedactOneByOne(t *testing.T) {
	r := NewRedactor(NewValue([]byte("tok-5ecr3t-value")))
	s := r.Stream(false)
	var seen []byte
	for _, c := range []byte("to the tok") {
		seen = append(seen, s.Push([]byte{c})...)
	}
	if string(seen) != "to the tok" {
		t.Errorf("what somebody types is held back: %q", seen)
	}
	got := redactAll(s, "-", "5", "ecr3t-value!")
	if got != strings.Repeat("*", 13)+"!" {
		t.Errorf("after its beginning was shown: %q", got)
	}
}

func TestRedactTorn(t *testing.T) {
	r := NewRedactor(NewValue([]byte("tok-5ecr3t-value")))
	for in, want := range map[string]string{
		"ecr3t-value and more": "*********** and more"[0:11] + " and more",
		"value!":               "value!", // shorter than the minimum
		"-value!":              "******!",
		"nothing of it":        "nothing of it",
		"5ecr3t-val":           "5ecr3t-val", // not to its end
	} {
		if got := redactAll(r.Stream(true), in); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
		var byOne bytes.Buffer
		if _, err := io.Copy(&byOne, r.Reader(iotest.OneByteReader(strings.NewReader(in)), true)); err != nil {
			t.Fatal(err)
		}
		if got := byOne.String(); len(got) != len(in) || strings.Contains(got, "3t-value") {
			t.Errorf("byte by byte %q became %q", in, got)
		}
	}
	if got := redactAll(r.Stream(false), "ecr3t-value"); got != "ecr3t-value" {
		t.Errorf("a stream that is whole: %q", got)
	}
}

func TestRedactLines(t *testing.T) {
	key := "-----BEGIN KEY-----\nMIIabcdefghijkl\nmnopqrstuvwxyz01\n-----END KEY-----"
	r := NewRedactor(NewValue([]byte(key)))
	for _, shown := range []string{key, strings.ReplaceAll(key, "\n", "\r\n")} {
		if got := redactAll(r.Stream(false), "a "+shown[:30], shown[30:]+" b"); got != "a ---"+strings.Repeat("*", len(shown)-3)+" b" {
			t.Errorf("%q", got)
		}
	}
}

// TestRedactIsBounded checks that a stream holds back no more than a value.
func TestRedactIsBounded(t *testing.T) {
	r := NewRedactor(NewValue(bytes.Repeat([]byte("a"), 40)))
	s := r.Stream(false)
	in, out := 0, 0
	for range 1000 {
		b := bytes.Repeat([]byte("a"), 33)
		in += len(b)
		out += len(s.Push(b))
		if in-out > r.m.longest+len(b) || cap(s.held) > 1<<12 {
			t.Fatalf("%d bytes are held, in room for %d", in-out, cap(s.held))
		}
	}
}

// FuzzRedact looks for a stream that changes its length or shows the value.
func FuzzRedact(f *testing.F) {
	f.Add("secret-value", "a secret-value b", 5, false)
	f.Add("aaaaaab", "aaaaaaaaaaaab", 3, true)
	f.Fuzz(func(t *testing.T, value, text string, cut int, torn bool) {
		if len(value) == 0 || len(value) > 200 || len(text) > 2000 {
			return
		}
		cut = min(max(cut, 0), len(text))
		got := redactAll(NewRedactor(NewValue([]byte(value))).Stream(torn), text[:cut], text[cut:])
		if len(got) != len(text) {
			t.Fatalf("%d bytes became %d", len(text), len(got))
		}
		if strings.Trim(value, "*") != "" && len(value) >= MinScrub && strings.Contains(got, value) && !strings.Contains(value, "*") {
			t.Fatalf("%q shows %q", got, value)
		}
	})
}
