// Package cbor encodes and decodes the part of CBOR (RFC 8949) that messages of
// simple types need: integers, booleans, null, texts, bytes, lists and maps with
// texts as keys, all with known lengths.
package cbor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
)

// The major types.
const (
	unsigned = iota << 5
	negative
	byteString
	textString
	list
	dictionary
	tag
	simple
)

const (
	no     = simple | 20
	yes    = simple | 21
	null   = simple | 22
	single = simple | 26
	double = simple | 27
)

// maxDepth limits how deep a decoded value may be nested.
const maxDepth = 16

var errInvalid = errors.New("the CBOR is invalid or of an unknown kind")

// head appends the type of a value and its number.
func head(to []byte, major byte, n uint64) []byte {
	switch {
	case n < 24:
		return append(to, major|byte(n))
	case n <= math.MaxUint8:
		return append(to, major|24, byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(to, major|25), uint16(n))
	case n <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(to, major|26), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(to, major|27), n)
}

// Append appends a value: nil, bool, int, uint64, string, []byte, []string, []any
// or map[string]any. It panics if it is of another type.
func Append(to []byte, value any) []byte {
	switch v := value.(type) {
	case nil:
		return append(to, null)
	case bool:
		if v {
			return append(to, yes)
		}
		return append(to, no)
	case int:
		if v < 0 {
			return head(to, negative, uint64(-1-v))
		}
		return head(to, unsigned, uint64(v))
	case uint64:
		return head(to, unsigned, v)
	case string:
		return append(head(to, textString, uint64(len(v))), v...)
	case []byte:
		return append(head(to, byteString, uint64(len(v))), v...)
	case []string:
		to = head(to, list, uint64(len(v)))
		for _, one := range v {
			to = Append(to, one)
		}
		return to
	case []any:
		to = head(to, list, uint64(len(v)))
		for _, one := range v {
			to = Append(to, one)
		}
		return to
	case map[string]any:
		to = head(to, dictionary, uint64(len(v)))
		for _, key := range slices.Sorted(maps.Keys(v)) {
			to = Append(Append(to, key), v[key])
		}
		return to
	}
	panic(fmt.Sprintf("cbor: a value of type %T", value))
}

// Decode decodes a value, with nothing after it: nil, bool, int64, uint64 for
// numbers that int64 does not hold, float64, string, []byte, []any or
// map[string]any. Bytes are part of data. Tags are ignored.
func Decode(data []byte) (any, error) {
	value, rest, err := decode(data, 0)
	if err == nil && len(rest) > 0 {
		err = errInvalid
	}
	return value, err
}

func decode(data []byte, depth int) (value any, rest []byte, err error) {
	if len(data) == 0 || depth > maxDepth {
		return nil, nil, errInvalid
	}
	switch data[0] {
	case no, yes:
		return data[0] == yes, data[1:], nil
	case null:
		return nil, data[1:], nil
	}
	major, n, rest, ok := number(data)
	if !ok {
		return nil, nil, errInvalid
	}
	switch major {
	case unsigned:
		if n > math.MaxInt64 {
			return n, rest, nil
		}
		return int64(n), rest, nil
	case negative:
		if n > math.MaxInt64 {
			return nil, nil, errInvalid
		}
		return -1 - int64(n), rest, nil
	case byteString, textString:
		if n > uint64(len(rest)) {
			return nil, nil, errInvalid
		}
		if major == textString {
			return string(rest[:n]), rest[n:], nil
		}
		return rest[:n:n], rest[n:], nil
	case list, dictionary:
		return several(major, n, rest, depth)
	case tag:
		return decode(rest, depth+1)
	}
	switch data[0] {
	case single:
		return float64(math.Float32frombits(uint32(n))), rest, nil
	case double:
		return math.Float64frombits(n), rest, nil
	}
	return nil, nil, errInvalid
}

// number returns the type of a value and its number.
func number(data []byte) (major byte, n uint64, rest []byte, ok bool) {
	major, size := data[0]&0xe0, data[0]&0x1f
	rest = data[1:]
	if size < 24 {
		return major, uint64(size), rest, true
	}
	width := 1 << (size - 24)
	if size > 27 || len(rest) < width {
		return 0, 0, nil, false
	}
	for _, b := range rest[:width] {
		n = n<<8 | uint64(b)
	}
	return major, n, rest[width:], true
}

// several decodes a list or a map of n values.
func several(major byte, n uint64, rest []byte, depth int) (any, []byte, error) {
	if n > uint64(len(rest)) { // each has at least a byte
		return nil, nil, errInvalid
	}
	all, pairs := []any{}, map[string]any{}
	for range n {
		key := ""
		var value any
		var err error
		if major == dictionary {
			if value, rest, err = decode(rest, depth+1); err != nil {
				return nil, nil, err
			}
			text, ok := value.(string)
			if !ok {
				return nil, nil, errInvalid
			}
			key = text
		}
		if value, rest, err = decode(rest, depth+1); err != nil {
			return nil, nil, err
		}
		if major == dictionary {
			pairs[key] = value
		} else {
			all = append(all, value)
		}
	}
	if major == dictionary {
		return pairs, rest, nil
	}
	return all, rest, nil
}
