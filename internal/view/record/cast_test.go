package record

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/atoll-run/atoll/sandbox"
)

// read reads an asciicast file strictly, and returns the text of each code.
func read(t *testing.T, file []byte) (header map[string]any, text map[string]string) {
	t.Helper()
	text = map[string]string{}
	last := 0.0
	for i, line := range bytes.Split(bytes.TrimSuffix(file, []byte("\n")), []byte("\n")) {
		if i == 0 {
			if err := json.Unmarshal(line, &header); err != nil {
				t.Fatalf("header %s: %v", line, err)
			}
			continue
		}
		var event []any
		if err := json.Unmarshal(line, &event); err != nil || len(event) != 3 {
			t.Fatalf("line %d, %s: %v", i+1, line, err)
		}
		at, ok := event[0].(float64)
		if !ok || at < last {
			t.Fatalf("line %d, %s: earlier than %v", i+1, line, last)
		}
		last = at
		text[event[1].(string)] += event[2].(string)
	}
	return header, text
}

// RB-72.
func TestCastFiles(t *testing.T) {
	c := newCast()
	file := c.header(sandbox.WindowSize{Cols: 80, Rows: 24}, time.Unix(1700000000, 0), `a "title" <b>`)
	shown := "\x1b[31mgrüße € 𝄞\r\n<&>\"\\\x00\x7f"
	for i := range shown { // each character arrives in pieces
		for _, b := range []byte(shown[i:min(len(shown), i+runeLen(shown[i:]))]) {
			file = append(file, c.data(time.Duration(i)*time.Millisecond, output, []byte{b})...)
		}
	}
	file = append(file, c.size(time.Millisecond, sandbox.WindowSize{Cols: 100, Rows: 30})...) // the clock went back
	file = append(file, c.data(time.Second, input, []byte("ls\r"))...)
	file = append(file, c.data(time.Second, output, []byte("\xe2\x82"))...) // never completed
	file = append(file, c.rest(2*time.Second)...)
	file = append(file, c.data(2*time.Second, output, []byte("a\xffb"))...)
	header, text := read(t, file)
	if header["version"] != 2.0 || header["width"] != 80.0 || header["height"] != 24.0 || header["timestamp"] != 1700000000.0 || header["title"] != `a "title" <b>` {
		t.Errorf("the header is %v", header)
	}
	if want := shown + "\ufffda\ufffdb"; strings.ReplaceAll(text["o"], "\ufffd\ufffd", "\ufffd") != want {
		t.Errorf("shown %q, want %q", text["o"], want)
	}
	if text["i"] != "ls\r" || text["r"] != "100x30" {
		t.Errorf("typed %q, sizes %q", text["i"], text["r"])
	}
}

func runeLen(s string) int {
	_, n := utf8.DecodeRuneInString(s)
	return n
}

// Whatever a program prints, the file has one event per line, and valid text is
// kept.
func FuzzCast(f *testing.F) {
	f.Add([]byte("a\xe2\x82\xacb\xff\xe2"), uint8(2))
	f.Fuzz(func(t *testing.T, p []byte, step uint8) {
		c := newCast()
		file := c.header(sandbox.WindowSize{Cols: 80, Rows: 24}, time.Unix(1, 0), "")
		for rest := p; len(rest) > 0; {
			n := min(len(rest), int(step%8)+1)
			file = append(file, c.data(0, output, rest[:n])...)
			rest = rest[n:]
		}
		file = append(file, c.rest(0)...)
		if _, text := read(t, file); utf8.Valid(p) && text["o"] != string(p) {
			t.Errorf("%q became %q", p, text["o"])
		}
	})
}
