package atoll

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"github.com/atoll-run/atoll/internal/client"
	"github.com/atoll-run/atoll/sandbox"
)

// maxCodeOutput is how many bytes of each stream RunCode keeps, and maxCodeResults
// how many of results.
const (
	maxCodeOutput  = 16 << 20
	maxCodeResults = 64 << 20
)

// RunCode executes code in the code interpreter of the sandbox, which keeps
// variables from one call to the next, and returns what it said: at most 16 MiB
// of each stream and 64 MiB of results. An exception of the code is in the output
// and is no error. When ctx ends, the code is interrupted. The image needs
// python3, and what the language needs.
func (s *Sandbox) RunCode(ctx context.Context, req sandbox.CodeRequest) (out sandbox.CodeOutput, err error) {
	var stdout, stderr strings.Builder
	size := 0
	keep := func(to *strings.Builder, text string) {
		if room := maxCodeOutput - to.Len(); len(text) > room {
			text, out.Truncated = text[:room], true
		}
		to.WriteString(text)
	}
	err = s.StreamCode(ctx, req, func(e sandbox.CodeEvent) error {
		switch e.Type {
		case sandbox.CodeStarted:
			out.Count = e.Count
		case sandbox.CodeStdout:
			keep(&stdout, e.Text)
		case sandbox.CodeStderr:
			keep(&stderr, e.Text)
		case sandbox.CodeShown:
			r := e.Result
			size += len(r.Text) + len(r.HTML) + len(r.Markdown) + len(r.SVG) + len(r.PNG) + len(r.JPEG) + len(r.PDF) + len(r.LaTeX) + len(r.JavaScript) + len(r.JSON) + len(r.Data) + len(r.Chart)
			if size > maxCodeResults {
				out.Truncated = true
				return nil
			}
			out.Results = append(out.Results, *r)
		case sandbox.CodeFailed:
			out.Error = e.Error
		case sandbox.CodeEnded:
			out.TimedOut = e.TimedOut
		}
		return nil
	})
	out.Stdout, out.Stderr = stdout.String(), stderr.String()
	return out, err
}

// StreamCode is RunCode for callers that want the events as they come: it calls
// each with every event, in order. If each returns an error, the code is
// interrupted, and StreamCode returns that error.
func (s *Sandbox) StreamCode(ctx context.Context, req sandbox.CodeRequest, each func(sandbox.CodeEvent) error) error {
	body, err := json.Marshal(req)
	if err != nil {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "code.run", Message: "cannot be sent", Cause: err}
	}
	r, err := s.client.conn.Request(ctx, http.MethodPost, s.path("/code"), nil, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := s.client.conn.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	for lines := json.NewDecoder(resp.Body); ; {
		var line json.RawMessage
		if err := lines.Decode(&line); err != nil {
			return client.TransportError(ctx, err)
		}
		if err := lineError(line); err != nil {
			return err
		}
		var e sandbox.CodeEvent
		if err := json.Unmarshal(line, &e); err != nil {
			return client.TransportError(ctx, err)
		}
		if e.Type == sandbox.CodeShown && e.Result == nil || e.Type == sandbox.CodeFailed && e.Error == nil {
			continue // not by our daemon
		}
		if err := each(e); err != nil || e.Type == sandbox.CodeEnded {
			return err
		}
	}
}

// CodeContexts returns the contexts of the code interpreter. Each language has a
// default one, which is made when it is first used.
func (s *Sandbox) CodeContexts(ctx context.Context) ([]sandbox.CodeContext, error) {
	var out struct {
		Contexts []sandbox.CodeContext `json:"contexts"`
	}
	err := s.client.conn.Call(ctx, http.MethodGet, s.path("/code/contexts"), nil, nil, &out)
	return out.Contexts, err
}

// CreateCodeContext makes a context with variables of its own.
func (s *Sandbox) CreateCodeContext(ctx context.Context, n sandbox.NewCodeContext) (out sandbox.CodeContext, err error) {
	return out, s.client.conn.Call(ctx, http.MethodPost, s.path("/code/contexts"), nil, n, &out)
}

// RestartCodeContext ends the process of a context, which forgets its variables.
func (s *Sandbox) RestartCodeContext(ctx context.Context, id string) error {
	return s.codeContext(ctx, http.MethodPost, id, "/restart")
}

// InterruptCodeContext interrupts what a context executes, as ^C does. Its
// variables stay.
func (s *Sandbox) InterruptCodeContext(ctx context.Context, id string) error {
	return s.codeContext(ctx, http.MethodPost, id, "/interrupt")
}

// RemoveCodeContext ends a context. The default one of a language is made again
// when that is used.
func (s *Sandbox) RemoveCodeContext(ctx context.Context, id string) error {
	return s.codeContext(ctx, http.MethodDelete, id, "")
}

func (s *Sandbox) codeContext(ctx context.Context, method, id, rest string) error {
	return s.client.conn.Call(ctx, method, s.path("/code/contexts/"+url.PathEscape(id)+rest), nil, nil, nil)
}
