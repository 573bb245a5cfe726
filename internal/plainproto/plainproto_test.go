package plainproto

import (
	"encoding/hex"
	"math"
	"reflect"
	"testing"

	"google.golang.org/protobuf/types/known/wrapperspb"
)

// numbers has the kinds of numbers that package envd does not use, and tests.
type numbers struct {
	Double float64  `pb:"1"`
	Float  float32  `pb:"2"`
	Big    uint64   `pb:"3"`
	Some   *float64 `pb:"4"`
}

func TestNumbers(t *testing.T) {
	zero := 0.0
	in := numbers{1.5, -2.25, math.MaxUint64, &zero}
	b, err := Codec{}.Marshal(&in)
	const want = "09000000000000f83f" + "15000010c0" + "18ffffffffffffffffff01" + "210000000000000000"
	if got := hex.EncodeToString(b); err != nil || got != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
	var out numbers
	if err := (Codec{}).Unmarshal(b, &out); err != nil || !reflect.DeepEqual(in, out) {
		t.Errorf("%+v, %v; want %+v", out, err, in)
	}
	for _, odd := range []string{"08ff01", "0d00000000", "19000000000000f83f", "0900"} {
		b, _ := hex.DecodeString(odd)
		if err := (Codec{}).Unmarshal(b, new(numbers)); err == nil {
			t.Errorf("%s is accepted", odd)
		}
	}
	if b, err := (Codec{}).Marshal(&numbers{}); err != nil || len(b) != 0 {
		t.Errorf("nothing becomes %x, %v", b, err)
	}
}

// Messages of the protobuf library are encoded by it.
func TestLibrary(t *testing.T) {
	b, err := Codec{}.Marshal(wrapperspb.String("x"))
	out := new(wrapperspb.StringValue)
	if err == nil {
		err = Codec{}.Unmarshal(b, out)
	}
	if err != nil || out.Value != "x" {
		t.Errorf("%v, %v", out, err)
	}
}
