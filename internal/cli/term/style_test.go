package term

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/atoll-run/atoll/internal/cli/clitest"
)

func TestVisible(t *testing.T) {
	for text, want := range map[string]string{
		"plain é ✓\n": "plain é ✓\n", "\x1b[2J": `\u001b[2J`, "\x9b": `\ufffd`, "a\u202eb": `a\u202eb`, "\r": `\u000d`,
	} {
		if got := Visible(text); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
	if got := OneLine("a\nb\tc"+strings.Repeat("x", 100), 10); got != "a b cxxxx…" {
		t.Errorf("got %q", got)
	}
	if got := CommandText([]string{"sh", "-c", "it's", ""}); got != `sh -c 'it'\''s' ''` {
		t.Errorf("got %s", got)
	}
}

// What is written for programs means the same as before.
func TestEscapedJSON(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	want := map[string]string{clitest.Evil: "é ✓ 日本 " + clitest.Evil + "\n\t<&>"}
	if err := WriteJSON(&out, want, "  "); err != nil {
		t.Fatal(err)
	}
	var got map[string]string
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || got[clitest.Evil] != want[clitest.Evil] {
		t.Errorf("got %q, %v", got, err)
	}
	if found := clitest.Harm(out.String()); found != "" || !strings.Contains(out.String(), "é ✓ 日本") {
		t.Errorf("contains %s: %s", found, out.String())
	}
}

// A character that is written in two parts is shown as one.
func TestVisibleWriter(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	w := &visibleWriter{w: &out}
	for i := range len("é✓\u202e日") {
		if n, err := w.Write([]byte{"é✓\u202e日"[i]}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	if out.String() != `é✓\u202e日` {
		t.Errorf("got %q", out.String())
	}
}
