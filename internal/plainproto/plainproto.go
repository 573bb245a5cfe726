// Package plainproto is protobuf's binary encoding of plain structs. Their pb
// tags contain the field numbers; a number with ",zigzag" is a signed integer
// of protobuf. A oneof is a set of pointers or byte slices of which exactly one
// is not nil. Servers and clients of a protocol therefore need neither
// generated code nor its run-time.
package plainproto

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Codec is the encoding, for Connect.
type Codec struct{}

// Name is the name by which Connect selects the codec.
func (Codec) Name() string { return "proto" }

// field is one field of a message.
type field struct {
	index  int
	number protowire.Number
	zigzag bool
}

var known sync.Map // reflect.Type → []field

// fieldsOf reads the tags of a message type and caches the result.
func fieldsOf(t reflect.Type) []field {
	if fs, ok := known.Load(t); ok {
		return fs.([]field)
	}
	var fs []field
	for i := range t.NumField() {
		number, option, _ := strings.Cut(t.Field(i).Tag.Get("pb"), ",")
		if n, err := strconv.Atoi(number); err == nil {
			fs = append(fs, field{i, protowire.Number(n), option == "zigzag"})
		}
	}
	known.Store(t, fs)
	return fs
}

var timeType = reflect.TypeFor[time.Time]()

// Marshal encodes a message.
func (Codec) Marshal(m any) ([]byte, error) {
	if known, ok := m.(proto.Message); ok {
		return proto.Marshal(known) // Connect's own, for details of errors
	}
	v := reflect.ValueOf(m)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		return nil, fmt.Errorf("%T is not a message", m)
	}
	return appendMessage(nil, v.Elem()), nil
}

func appendMessage(b []byte, m reflect.Value) []byte {
	if m.Type() == timeType {
		t := m.Interface().(time.Time)
		b = appendVarint(b, 1, uint64(t.Unix()))
		return appendVarint(b, 2, uint64(t.Nanosecond()))
	}
	for _, f := range fieldsOf(m.Type()) {
		b = appendField(b, f, m.Field(f.index), false)
	}
	return b
}

func appendVarint(b []byte, n protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), v)
}

func appendBytes(b []byte, n protowire.Number, v []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), v)
}

// appendField encodes one field. It omits zero values, except behind a pointer
// or in a list.
func appendField(b []byte, f field, v reflect.Value, present bool) []byte {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return b
		}
		return appendField(b, f, v.Elem(), true)
	case reflect.Struct:
		return appendBytes(b, f.number, appendMessage(nil, v))
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			if v.IsNil() {
				return b
			}
			return appendBytes(b, f.number, v.Bytes())
		}
		for i := range v.Len() {
			b = appendField(b, f, v.Index(i), true)
		}
		return b
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			entry := appendField(nil, field{number: 1}, it.Key(), false)
			entry = appendField(entry, field{number: 2}, it.Value(), false)
			b = appendBytes(b, f.number, entry)
		}
		return b
	case reflect.String:
		if v.Len() == 0 && !present {
			return b
		}
		return appendBytes(b, f.number, []byte(v.String()))
	}
	number := scalar(f, v)
	if number == 0 && !present {
		return b
	}
	switch v.Kind() {
	case reflect.Float64:
		return protowire.AppendFixed64(protowire.AppendTag(b, f.number, protowire.Fixed64Type), number)
	case reflect.Float32:
		return protowire.AppendFixed32(protowire.AppendTag(b, f.number, protowire.Fixed32Type), uint32(number))
	}
	return protowire.AppendVarint(protowire.AppendTag(b, f.number, protowire.VarintType), number)
}

// scalar returns the wire value of a number.
func scalar(f field, v reflect.Value) uint64 {
	switch {
	case v.Kind() == reflect.Bool:
		return protowire.EncodeBool(v.Bool())
	case v.CanUint():
		return v.Uint()
	case v.Kind() == reflect.Float64:
		return math.Float64bits(v.Float())
	case v.Kind() == reflect.Float32:
		return uint64(math.Float32bits(float32(v.Float())))
	case f.zigzag:
		return protowire.EncodeZigZag(v.Int())
	}
	return uint64(v.Int())
}

// maxDepth limits the nesting of messages. Our messages use four levels.
const maxDepth = 16

var errMalformed = errors.New("the message is malformed")

// Unmarshal decodes a message and ignores unknown fields.
func (Codec) Unmarshal(b []byte, m any) error {
	if known, ok := m.(proto.Message); ok {
		return proto.Unmarshal(b, known)
	}
	v := reflect.ValueOf(m)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		return fmt.Errorf("%T is not a message", m)
	}
	return readMessage(b, v.Elem(), 0)
}

func readMessage(b []byte, m reflect.Value, depth int) error {
	if depth > maxDepth {
		return errMalformed
	}
	if m.Type() == timeType {
		return readTime(b, m)
	}
	fields := fieldsOf(m.Type())
	return eachField(b, func(number protowire.Number, typ protowire.Type, bits uint64, data []byte) error {
		for _, f := range fields {
			if f.number == number {
				return readField(f, m.Field(f.index), typ, bits, data, depth)
			}
		}
		return nil
	})
}

// eachField calls read with the fields of a message in order. A number is
// passed in bits, a length-delimited value in data.
func eachField(b []byte, read func(n protowire.Number, typ protowire.Type, bits uint64, data []byte) error) error {
	for len(b) > 0 {
		number, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return errMalformed
		}
		b = b[n:]
		var bits uint64
		var data []byte
		switch typ {
		case protowire.VarintType:
			bits, n = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			data, n = protowire.ConsumeBytes(b)
		case protowire.Fixed64Type:
			bits, n = protowire.ConsumeFixed64(b)
		case protowire.Fixed32Type:
			var half uint32
			half, n = protowire.ConsumeFixed32(b)
			bits = uint64(half)
		default:
			n = protowire.ConsumeFieldValue(number, typ, b)
		}
		if n < 0 {
			return errMalformed
		}
		b = b[n:]
		if err := read(number, typ, bits, data); err != nil {
			return err
		}
	}
	return nil
}

func readTime(b []byte, m reflect.Value) error {
	var part [3]int64
	err := eachField(b, func(n protowire.Number, typ protowire.Type, bits uint64, _ []byte) error {
		if typ == protowire.VarintType && (n == 1 || n == 2) {
			part[n] = int64(bits)
		}
		return nil
	})
	m.Set(reflect.ValueOf(time.Unix(part[1], part[2]).UTC()))
	return err
}

func readField(f field, v reflect.Value, typ protowire.Type, bits uint64, data []byte, depth int) error {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		return readField(f, v.Elem(), typ, bits, data, depth)
	case reflect.Struct:
		if typ != protowire.BytesType {
			return errMalformed
		}
		return readMessage(data, v, depth+1)
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			if typ != protowire.BytesType {
				return errMalformed
			}
			v.SetBytes(append([]byte{}, data...))
			return nil
		}
		one := reflect.New(v.Type().Elem()).Elem()
		if err := readField(f, one, typ, bits, data, depth); err != nil {
			return err
		}
		v.Set(reflect.Append(v, one))
		return nil
	case reflect.Map:
		return readEntry(v, typ, data)
	case reflect.String:
		if typ != protowire.BytesType {
			return errMalformed
		}
		v.SetString(string(data))
		return nil
	}
	switch {
	case typ != wireType(v.Kind()):
		return errMalformed
	case v.Kind() == reflect.Float64:
		v.SetFloat(math.Float64frombits(bits))
	case v.Kind() == reflect.Float32:
		v.SetFloat(float64(math.Float32frombits(uint32(bits))))
	case v.Kind() == reflect.Bool:
		v.SetBool(bits != 0)
	case v.Kind() == reflect.Uint32:
		v.SetUint(bits & 0xffffffff)
	case v.Kind() == reflect.Uint64:
		v.SetUint(bits)
	case f.zigzag:
		v.SetInt(int64(int32(protowire.DecodeZigZag(bits))))
	case v.Kind() == reflect.Int32:
		v.SetInt(int64(int32(bits)))
	default:
		v.SetInt(int64(bits))
	}
	return nil
}

// wireType returns the wire type of numbers of a kind.
func wireType(k reflect.Kind) protowire.Type {
	switch k {
	case reflect.Float64:
		return protowire.Fixed64Type
	case reflect.Float32:
		return protowire.Fixed32Type
	}
	return protowire.VarintType
}

// readEntry reads one entry of a map of strings.
func readEntry(v reflect.Value, typ protowire.Type, data []byte) error {
	if typ != protowire.BytesType {
		return errMalformed
	}
	var pair [3]string
	err := eachField(data, func(n protowire.Number, typ protowire.Type, _ uint64, data []byte) error {
		if typ == protowire.BytesType && (n == 1 || n == 2) {
			pair[n] = string(data)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if v.IsNil() {
		v.Set(reflect.MakeMap(v.Type()))
	}
	v.SetMapIndex(reflect.ValueOf(pair[1]), reflect.ValueOf(pair[2]))
	return nil
}
