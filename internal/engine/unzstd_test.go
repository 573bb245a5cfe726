package engine

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/klauspost/compress/zstd"

	"github.com/atoll-run/atoll/sandbox"
)

func compress(t *testing.T, content []byte, opts ...zstd.EOption) []byte {
	t.Helper()
	var out bytes.Buffer
	enc, err := zstd.NewWriter(&out, opts...)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := enc.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := enc.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// Compressed data is restored; a truncated stream is an error.
func TestCompressed(t *testing.T) {
	content := strings.Repeat("a tar stream, or so ", 1<<16)
	var out bytes.Buffer
	if err := compressed(&out, func(w io.Writer) error { _, err := io.WriteString(w, content); return err }); err != nil {
		t.Fatal(err)
	}
	r, err := uncompressed(bytes.NewReader(out.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); err != nil || string(got) != content || out.Len() > len(content)/10 {
		t.Errorf("%d bytes in %d, %v", len(got), out.Len(), err)
	}
	out.Reset()
	broken := errors.New("broken")
	err = compressed(&out, func(w io.Writer) error { _, err := io.WriteString(w, content); return errors.Join(broken, err) })
	if !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	r, err = uncompressed(bytes.NewReader(out.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); err == nil && string(got) == content {
		t.Error("what broke off looks whole")
	}
}

func TestUncompressed(t *testing.T) {
	content := bytes.Repeat([]byte("a tar stream, or so "), 1<<16)
	for name, stream := range map[string][]byte{
		"plain": content, "short": []byte("x"), "empty": nil, "zstd": compress(t, content),
		"the strongest": compress(t, content, zstd.WithEncoderLevel(zstd.SpeedBestCompression)),
		"two frames":    append(compress(t, content[:100]), compress(t, content[100:])...),
	} {
		want := content
		if len(stream) < 4 {
			want = stream
		}
		r, err := uncompressed(iotest.HalfReader(bytes.NewReader(stream)))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, want %d: %v", name, len(got), len(want), err)
		}
	}
}

func TestUncompressedRefuses(t *testing.T) {
	content := bytes.Repeat([]byte("content "), 1<<16)
	good := compress(t, content)
	bad := bytes.Clone(good)
	bad[len(bad)/2] ^= 0xff
	// A frame that needs 1 GiB of memory, and an invalid frame.
	huge := []byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 20 << 3, 1, 0, 0}
	for name, stream := range map[string][]byte{
		"damaged": bad, "truncated": good[:len(good)-10], "too large a window": huge, "nonsense": []byte("\x28\xb5\x2f\xfdnonsense"),
	} {
		r, err := uncompressed(bytes.NewReader(stream))
		if err == nil {
			_, err = io.Copy(io.Discard, r)
		}
		if sandbox.CodeOf(err) != sandbox.CodeInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	broken := errors.New("the connection broke")
	r, err := uncompressed(io.MultiReader(bytes.NewReader(good[:len(good)/2]), iotest.ErrReader(broken)))
	if err == nil {
		_, err = io.Copy(io.Discard, r)
	}
	if !errors.Is(err, broken) {
		t.Errorf("a stream that breaks off: %v", err)
	}
	if _, err := uncompressed(iotest.ErrReader(broken)); !errors.Is(err, broken) {
		t.Errorf("a stream that is none: %v", err)
	}
	if _, err := uncompressed(strings.NewReader("")); err != nil {
		t.Errorf("an empty stream: %v", err)
	}
}
