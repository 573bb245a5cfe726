package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"

	"github.com/danielgtaylor/huma/v2"
)

// errTwice is about a body in which a name is repeated in one object.
var errTwice = errors.New("a name is repeated in one object")

// formats reads and writes JSON. Bodies are decoded twice, for validation and
// into the type of the request. Both must see the same values, and so must a
// proxy in front that decides on a body. So a repeated name is refused.
func formats() map[string]huma.Format {
	f := huma.DefaultJSONFormat
	f.Unmarshal = func(data []byte, v any) error {
		if err := json.Unmarshal(data, v); err != nil {
			return err
		}
		if _, validated := v.(*any); validated { // comes first
			return once(data)
		}
		return nil
	}
	return map[string]huma.Format{"application/json": f, "json": f}
}

// once returns an error if an object in valid JSON has the same name twice.
func once(data []byte) error {
	type object struct {
		names map[string]bool // nil for an array
		value bool            // the next token is the value of a name
	}
	var open []object
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		in := len(open) - 1
		switch token {
		case json.Delim('}'), json.Delim(']'):
			open = open[:in]
			continue
		}
		if in >= 0 && open[in].names != nil {
			name, _ := token.(string)
			switch {
			case open[in].value:
			case open[in].names[name]:
				return errTwice
			default:
				open[in].names[name] = true
			}
			open[in].value = !open[in].value
		}
		switch token {
		case json.Delim('{'):
			open = append(open, object{names: map[string]bool{}})
		case json.Delim('['):
			open = append(open, object{})
		}
	}
}
