package api

import (
	"bytes"
	"encoding/json"
	"errors"
	random "math/rand"
	"math/rand/v2"
	"reflect"
	"testing"
	"testing/quick"
	"time"
)

// Whatever a sandbox has, its own encoding says what encoding/json's does.
func TestAppendedSandbox(t *testing.T) {
	check := func(s Sandbox) {
		t.Helper()
		text, err := s.appendJSON([]byte("before "))
		if err != nil {
			t.Fatal(err)
		}
		text = bytes.TrimPrefix(text, []byte("before "))
		want, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		var short, long any
		if err := json.Unmarshal(text, &short); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		if err := json.Unmarshal(want, &long); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(short, long) {
			t.Errorf("%s, want %s", text, want)
		}
	}
	check(Sandbox{})
	// Each field by itself, so that a new one is not forgotten.
	for i := range reflect.TypeFor[Sandbox]().NumField() {
		for range 20 {
			if s := withField(t, i); s.LabelsJSON == "" { // it is not made of what encoding/json writes
				check(s)
			}
		}
	}
	s := Sandbox{Created: time.Unix(1, 120), Updated: time.Unix(5e9, 0).UTC()}
	for _, text := range []string{"", "plain", `"`, `\`, "\x00", "\x7f", "ü", "\xff", "<&>", "\u2028", "🏝"} {
		s.Name, s.Reason, s.Labels = text, text, map[string]string{text: text, "a": "b"}
		check(s)
	}
	for _, cpus := range []float64{0.5, 1e-9, 1e25, -1, 3} {
		s.Resources.CPUs = cpus
		check(s)
	}
}

// Labels that are JSON already are written like those that are not, whatever
// else there is.
func TestAppendLabelsJSON(t *testing.T) {
	for _, text := range []string{"", "plain", `"`, `\`, "\x00", "ü", "<&>", "\u2028", "🏝"} {
		for _, origin := range []string{"", "not brief"} {
			s := Sandbox{Labels: map[string]string{text: text, "a": "b"}, Origin: origin}
			want, err := s.appendJSON(nil)
			if err != nil {
				t.Fatal(err)
			}
			doc, err := json.Marshal(s.Labels)
			if err != nil {
				t.Fatal(err)
			}
			s.Labels, s.LabelsJSON = nil, string(doc)
			got, err := s.appendJSON(nil)
			var a, b any
			if err = errors.Join(err, json.Unmarshal(got, &a), json.Unmarshal(want, &b)); err != nil || !reflect.DeepEqual(a, b) {
				t.Errorf("%s %v, want %s", got, err, want)
			}
		}
	}
}

// withField is a sandbox with an arbitrary value in one field.
func withField(t *testing.T, i int) Sandbox {
	t.Helper()
	var s Sandbox
	f := reflect.ValueOf(&s).Elem().Field(i)
	switch p := f.Addr().Interface().(type) {
	case *time.Time:
		*p = time.Unix(rand.Int64N(1e10), rand.Int64N(1e9))
	case **time.Time:
		at := time.Unix(rand.Int64N(1e10), rand.Int64N(1e9)).UTC()
		*p = &at
	default:
		v, ok := quick.Value(f.Type(), random.New(random.NewSource(rand.Int64())))
		if !ok {
			t.Fatalf("no value for a %v", f.Type())
		}
		f.Set(v)
	}
	return s
}

// A page says where the next one begins before anything else.
func TestAppendedPage(t *testing.T) {
	for _, page := range []listOutputBody{
		{},
		{Next: "abc"},
		{Sandboxes: []Sandbox{{ID: "sb-1"}}},
		{Sandboxes: []Sandbox{{ID: "sb-1", Exit: &Exit{Code: 3}}, {ID: "sb-2"}}, Next: "abc"},
	} {
		var out bytes.Buffer
		if err := marshal(&out, page); err != nil {
			t.Fatal(err)
		}
		if page.Next != "" && !bytes.HasPrefix(out.Bytes(), []byte(`{"next":"abc",`)) {
			t.Errorf("%s", out.Bytes())
		}
		var back listOutputBody
		if err := json.Unmarshal(out.Bytes(), &back); err != nil {
			t.Fatalf("%v: %s", err, out.Bytes())
		}
		if back.Next != page.Next || back.Sandboxes == nil || len(back.Sandboxes) != len(page.Sandboxes) {
			t.Errorf("%s became %+v", out.Bytes(), back)
		}
	}
}
