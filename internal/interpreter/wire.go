package interpreter

import (
	"encoding/base64"
	"encoding/json"

	"github.com/atoll-run/atoll/sandbox/coding"
)

// request is the body of /execute. Timeout is in seconds; the SDKs of E2B do not
// send it.
type request struct {
	Code     string            `json:"code"`
	Context  string            `json:"context_id,omitempty"`
	Language string            `json:"language,omitempty"`
	Env      map[string]string `json:"env_vars,omitempty"`
	Timeout  float64           `json:"timeout,omitempty"`
}

// described is a context on the wire.
type described struct {
	ID       string `json:"id,omitempty"`
	Language string `json:"language,omitempty"`
	Dir      string `json:"cwd,omitempty"`
}

func (d described) public() coding.CodeContext {
	return coding.CodeContext{ID: d.ID, Language: d.Language, Dir: d.Dir}
}

// line is an event on the wire, in the form of E2B's code interpreter.
type line struct {
	Type       string          `json:"type"`
	Text       string          `json:"text"`
	Count      int             `json:"execution_count"`
	TimedOut   bool            `json:"timed_out"`
	Name       string          `json:"name"`
	Value      string          `json:"value"`
	Traceback  string          `json:"traceback"`
	Main       bool            `json:"is_main_result"`
	HTML       string          `json:"html"`
	Markdown   string          `json:"markdown"`
	SVG        string          `json:"svg"`
	PNG        string          `json:"png"`
	JPEG       string          `json:"jpeg"`
	PDF        string          `json:"pdf"`
	LaTeX      string          `json:"latex"`
	JavaScript string          `json:"javascript"`
	JSON       json.RawMessage `json:"json"`
	Data       json.RawMessage `json:"data"`
	Chart      json.RawMessage `json:"chart"`
}

// event returns the event; false if it is of a kind that is not known.
func (l *line) event() (e coding.CodeEvent, known bool) {
	switch l.Type {
	case "number_of_executions":
		return coding.CodeEvent{Type: coding.CodeStarted, Count: l.Count}, true
	case "stdout", "stderr":
		return coding.CodeEvent{Type: l.Type, Text: l.Text}, true
	case "result":
		return coding.CodeEvent{Type: coding.CodeShown, Result: &coding.CodeResult{
			Main: l.Main, Text: l.Text, HTML: l.HTML, Markdown: l.Markdown, SVG: l.SVG,
			PNG: decoded(l.PNG), JPEG: decoded(l.JPEG), PDF: decoded(l.PDF), LaTeX: l.LaTeX, JavaScript: l.JavaScript,
			JSON: present(l.JSON), Data: present(l.Data), Chart: present(l.Chart),
		}}, true
	case "error":
		return coding.CodeEvent{Type: coding.CodeFailed, Error: &coding.CodeError{Name: l.Name, Value: l.Value, Traceback: l.Traceback}}, true
	case "keepalive":
		return coding.CodeEvent{Type: coding.CodeAlive}, true
	case "end_of_execution":
		return coding.CodeEvent{Type: coding.CodeEnded, TimedOut: l.TimedOut}, true
	}
	return e, false
}

// decoded returns what base64 stands for; nil if it is none.
func decoded(text string) []byte {
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil
	}
	return b
}

// present returns a value that is not null.
func present(v json.RawMessage) json.RawMessage {
	if string(v) == "null" {
		return nil
	}
	return v
}
