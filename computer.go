package atoll

import (
	"context"
	"net/http"

	"github.com/atoll-run/atoll/sandbox"
)

// StartDesktop starts the desktop of the sandbox, unless one of that size runs.
// One of another size is started again, which ends the programs on it. The image
// needs a display; see make desktop-image.
func (s *Sandbox) StartDesktop(ctx context.Context, want sandbox.Screen) (out sandbox.DesktopState, err error) {
	return out, s.client.conn.Call(ctx, http.MethodPut, s.path("/desktop"), nil, want, &out)
}

// Clipboard returns the text of the clipboard of the desktop, which is empty if
// there is none. A desktop that does not run is started.
func (s *Sandbox) Clipboard(ctx context.Context) (string, error) {
	out, err := s.UseComputer(ctx, sandbox.ComputerRequest{Actions: []sandbox.ComputerAction{{Action: "clipboard"}}})
	if err != nil || out.Clipboard == nil {
		return "", err
	}
	return *out.Clipboard, nil
}

// SetClipboard puts a text into the clipboard of the desktop, at most
// sandbox.MaxClipboard bytes. Programs there paste it.
func (s *Sandbox) SetClipboard(ctx context.Context, text string) error {
	_, err := s.UseComputer(ctx, sandbox.ComputerRequest{Actions: []sandbox.ComputerAction{{Action: "copy", Text: text}}})
	return err
}

// UseComputer looks at the desktop of the sandbox, or uses its mouse and
// keyboard: it carries out the actions of a request in order. A desktop that does
// not run is started.
func (s *Sandbox) UseComputer(ctx context.Context, req sandbox.ComputerRequest) (out sandbox.ComputerResult, err error) {
	return out, s.client.conn.Call(ctx, http.MethodPost, s.path("/computer"), nil, req, &out)
}
