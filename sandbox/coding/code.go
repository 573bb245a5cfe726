package coding

import "encoding/json"

// CodeRequest is code for the code interpreter of a sandbox.
type CodeRequest struct {
	Code string `json:"code" maxLength:"1048576" doc:"the code"`
	// Language is that of the default context that executes the code. Empty: python.
	Language string `json:"language,omitempty" maxLength:"32" doc:"python, javascript, typescript, bash, r or java, as far as the image has them; python if it is left out"`
	// Context is the id of a context. Language must be empty then.
	Context string `json:"context,omitempty" maxLength:"64" doc:"id of a context, instead of the default one of the language"`
	// Env is the environment of this execution, in addition to that of the sandbox.
	Env map[string]string `json:"env,omitempty" doc:"environment for this execution"`
	// TimeoutMS is the time after which the code is interrupted, in milliseconds. 0:
	// none.
	TimeoutMS int64 `json:"timeoutMs,omitempty" minimum:"0" maximum:"86400000" doc:"milliseconds after which the code is interrupted; 0 or left out: never"`
}

// Types of a CodeEvent.
const (
	CodeStarted = "started" // the execution begins; it has Count
	CodeStdout  = "stdout"  // output, in Text
	CodeStderr  = "stderr"
	CodeShown   = "result" // it has Result
	CodeFailed  = "error"  // it has Error
	CodeAlive   = "alive"  // nothing has happened for some seconds
	CodeEnded   = "end"    // the last one
)

// CodeEvent tells what code does.
type CodeEvent struct {
	Type   string      `json:"type" enum:"started,stdout,stderr,result,error,alive,end" doc:"alive comes every few seconds without another event; end is the last one"`
	Text   string      `json:"text,omitempty" doc:"of stdout and stderr"`
	Count  int         `json:"count,omitempty" doc:"of started: how many executions the context has had"`
	Result *CodeResult `json:"result,omitempty" doc:"of result"`
	Error  *CodeError  `json:"exception,omitempty" doc:"of error"`
	// TimedOut says that the timeout interrupted the code.
	TimedOut bool `json:"timedOut,omitempty" doc:"of end: the timeout interrupted the code"`
}

// CodeResult is something that code showed, in all forms that it has.
type CodeResult struct {
	// Main says that it is the value of the last expression.
	Main       bool            `json:"main,omitempty" doc:"the value of the last expression"`
	Text       string          `json:"text,omitempty"`
	HTML       string          `json:"html,omitempty"`
	Markdown   string          `json:"markdown,omitempty"`
	SVG        string          `json:"svg,omitempty"`
	PNG        []byte          `json:"png,omitempty"`
	JPEG       []byte          `json:"jpeg,omitempty"`
	PDF        []byte          `json:"pdf,omitempty"`
	LaTeX      string          `json:"latex,omitempty"`
	JavaScript string          `json:"javascript,omitempty"`
	JSON       json.RawMessage `json:"json,omitempty"`
	Data       json.RawMessage `json:"data,omitempty" doc:"columns of a table"`
	// Chart describes a figure of matplotlib, in the form of E2B's SDKs.
	Chart json.RawMessage `json:"chart,omitempty" doc:"what a figure shows, in the form of E2B's SDKs"`
}

// CodeError is an exception that ended code.
type CodeError struct {
	Name      string `json:"name"`
	Value     string `json:"value"`
	Traceback string `json:"traceback"`
}

// CodeOutput is what an execution said.
type CodeOutput struct {
	Stdout, Stderr string
	Results        []CodeResult
	Error          *CodeError // nil: the code ended normally
	Count          int        // executions that the context has had
	TimedOut       bool       // the timeout interrupted the code
	Truncated      bool       // some output or results are not here, because there was too much
}

// Text is the value of the last expression, as text.
func (o *CodeOutput) Text() string {
	for _, r := range o.Results {
		if r.Main {
			return r.Text
		}
	}
	return ""
}

// NewCodeContext describes a context to make.
type NewCodeContext struct {
	Language string `json:"language,omitempty" maxLength:"32" doc:"python if it is left out"`
	Dir      string `json:"dir,omitempty" maxLength:"4096" doc:"its working directory; that of the interpreter if it is left out"`
}

// CodeContext is a process of the code interpreter that keeps variables.
type CodeContext struct {
	ID       string `json:"id"`
	Language string `json:"language"`
	Dir      string `json:"dir" doc:"where it started"`
}
