package cbor

import (
	"bytes"
	"encoding/hex"
	"reflect"
	"strings"
	"testing"
)

// The values are examples of RFC 8949, appendix A.
func TestExamples(t *testing.T) {
	for text, want := range map[string]any{
		"00": 0, "17": 23, "1818": 24, "1903e8": 1000, "1a000f4240": 1000000, "1b000000e8d4a51000": 1000000000000, "1bffffffffffffffff": uint64(18446744073709551615),
		"20": -1, "3903e7": -1000, "f4": false, "f5": true, "f6": nil, "40": []byte{}, "4401020304": []byte{1, 2, 3, 4}, "60": "", "6449455446": "IETF",
		"83010203": []any{1, 2, 3}, "8301820203820405": []any{1, []any{2, 3}, []any{4, 5}}, "a26161016162820203": map[string]any{"a": 1, "b": []any{2, 3}}, "80": []any{}, "a0": map[string]any{},
	} {
		data, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := Append(nil, want); !bytes.Equal(got, data) {
			t.Errorf("%v is %x, want %s", want, got, text)
		}
		got, err := Decode(data)
		if err != nil || !reflect.DeepEqual(got, wide(want)) {
			t.Errorf("%s is %#v, %v; want %#v", text, got, err, want)
		}
	}
	for text, want := range map[string]any{"fa47c35000": 100000.0, "fb3ff199999999999a": 1.1, "c11a514b67b0": int64(1363896240)} {
		data, _ := hex.DecodeString(text)
		if got, err := Decode(data); err != nil || got != want {
			t.Errorf("%s is %v, %v; want %v", text, got, err, want)
		}
	}
	if got := Append(nil, []string{"a", "b"}); hex.EncodeToString(got) != "8261616162" {
		t.Errorf("a list of texts is %x", got)
	}
}

// wide converts integers to those of Decode.
func wide(v any) any {
	switch v := v.(type) {
	case int:
		return int64(v)
	case []any:
		all := []any{}
		for _, one := range v {
			all = append(all, wide(one))
		}
		return all
	case map[string]any:
		all := map[string]any{}
		for k, one := range v {
			all[k] = wide(one)
		}
		return all
	}
	return v
}

func TestInvalid(t *testing.T) {
	for _, text := range []string{
		"", "18", "19ff", "1c", "1f", "3bffffffffffffffff", "5bffffffffffffffff00", "44010203", "62ff", "9bffffffffffffffff", "8101ff", "9f01ff", "bf", "a10101", "a16161",
		"f7", "f97e00", "ff", "0000", strings.Repeat("81", 100) + "00", strings.Repeat("c1", 100) + "00",
	} {
		data, err := hex.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := Decode(data); err == nil {
			t.Errorf("%s is %v", text, got)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte{0xa1, 0x61, 0x61, 0x82, 1, 2})
	f.Fuzz(func(_ *testing.T, data []byte) { _, _ = Decode(data) })
}
