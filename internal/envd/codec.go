// Package envd implements the protocol between E2B's SDKs and a sandbox: the
// messages of the process and filesystem services and the two codecs that carry
// them over Connect.
//
// The messages are plain structs. Their json tags follow protobuf's JSON
// mapping; their pb tags are those of plainproto.
package envd

import (
	"encoding/json"
	"fmt"
	"strconv"

	"connectrpc.com/connect"

	"github.com/atoll-run/atoll/internal/plainproto"
)

// JSON is protobuf's JSON mapping of the messages.
type JSON struct{ name string }

// Name is the name by which Connect selects the codec.
func (c JSON) Name() string { return c.name }

// Marshal encodes a message.
func (JSON) Marshal(m any) ([]byte, error) { return json.Marshal(m) }

// Unmarshal decodes a message and ignores unknown fields.
func (JSON) Unmarshal(b []byte, m any) error {
	if len(b) == 0 {
		return nil
	}
	return json.Unmarshal(b, m)
}

// Codecs returns the options that make a handler support both codecs.
func Codecs() connect.HandlerOption {
	return connect.WithHandlerOptions(
		connect.WithCodec(JSON{"json"}), connect.WithCodec(JSON{"json; charset=utf-8"}), connect.WithCodec(plainproto.Codec{}),
	)
}

// ClientCodec makes a client use protobuf's binary encoding, or JSON.
func ClientCodec(binary bool) connect.ClientOption {
	if binary {
		return connect.WithCodec(plainproto.Codec{})
	}
	return connect.WithCodec(JSON{"json"})
}

func enumText(names map[int32]string, v int32) ([]byte, error) {
	if name, ok := names[v]; ok {
		return []byte(name), nil
	}
	return []byte(strconv.Itoa(int(v))), nil
}

func enumValue[T ~int32](names map[int32]string, b []byte) (T, error) {
	var number int32
	if json.Unmarshal(b, &number) == nil {
		return T(number), nil
	}
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return 0, err
	}
	for v, name := range names {
		if name == text {
			return T(v), nil
		}
	}
	if n, err := strconv.ParseInt(text, 10, 32); err == nil {
		return T(n), nil
	}
	return 0, fmt.Errorf("%.40q is not a known value", text)
}
