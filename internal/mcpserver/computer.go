package mcpserver

import (
	"context"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/atoll-run/atoll/internal/ops"
	"github.com/atoll-run/atoll/sandbox/viewing"
)

type placeArgs struct {
	sandboxArgs
	X int `json:"x"`
	Y int `json:"y"`
}

type clickArgs struct {
	placeArgs
	Button string   `json:"button,omitempty" jsonschema:"left, middle, right, back or forward"`
	Keys   []string `json:"keys,omitempty" jsonschema:"keys to hold"`
}

type scrollArgs struct {
	placeArgs
	ScrollX int `json:"scroll_x,omitempty"`
	ScrollY int `json:"scroll_y,omitempty" jsonschema:"pixels down; a notch is 100"`
}

type dragArgs struct {
	placeArgs
	ToX int `json:"to_x"`
	ToY int `json:"to_y"`
}

type typeArgs struct {
	sandboxArgs
	Text string `json:"text"`
}

type keyArgs struct {
	sandboxArgs
	Keys []string `json:"keys" jsonschema:"such as ctrl, s"`
}

type clipboardArgs struct {
	sandboxArgs
	Set string `json:"set,omitempty" jsonschema:"new text"`
}

type clipboardOut struct {
	Text  string `json:"text"`
	Bytes int64  `json:"bytes"`
}

type computerOut struct {
	Width  int `json:"width,omitempty"`
	Height int `json:"height,omitempty"`
}

func (s *Server) computerTools() {
	add(s, "computer_screenshot", "Take a screenshot", "See the desktop. computer_ tools use its pixels.", looks, does(ops.SandboxGet, ops.SandboxFind, ops.ComputerView),
		func(ctx context.Context, c *call, in sandboxArgs) (computerOut, error) {
			return c.act(ctx, in.Sandbox, viewing.ComputerAction{Action: "screenshot"})
		})
	add(s, "computer_click", "Click", "Click.", changes, does(ops.SandboxGet, ops.SandboxFind, ops.ComputerAct), func(ctx context.Context, c *call, in clickArgs) (computerOut, error) {
		return c.act(ctx, in.Sandbox, viewing.ComputerAction{Action: "click", X: &in.X, Y: &in.Y, Button: in.Button, Keys: in.Keys})
	})
	add(s, "computer_double_click", "Double-click", "Double-click.", changes, does(ops.SandboxGet, ops.SandboxFind, ops.ComputerAct), func(ctx context.Context, c *call, in placeArgs) (computerOut, error) {
		return c.act(ctx, in.Sandbox, viewing.ComputerAction{Action: "click", X: &in.X, Y: &in.Y, Count: 2})
	})
	add(s, "computer_move", "Move the pointer", "Move the pointer.", changes, does(ops.SandboxGet, ops.SandboxFind, ops.ComputerAct), func(ctx context.Context, c *call, in placeArgs) (computerOut, error) {
		return c.act(ctx, in.Sandbox, viewing.ComputerAction{Action: "move", X: &in.X, Y: &in.Y})
	})
	add(s, "computer_scroll", "Scroll", "Turn the wheel.", changes, does(ops.SandboxGet, ops.SandboxFind, ops.ComputerAct), func(ctx context.Context, c *call, in scrollArgs) (computerOut, error) {
		return c.act(ctx, in.Sandbox, viewing.ComputerAction{Action: "scroll", X: &in.X, Y: &in.Y, ScrollX: in.ScrollX, ScrollY: in.ScrollY})
	})
	add(s, "computer_drag", "Drag", "Drag with the left button.", changes, does(ops.SandboxGet, ops.SandboxFind, ops.ComputerAct), func(ctx context.Context, c *call, in dragArgs) (computerOut, error) {
		return c.act(ctx, in.Sandbox, viewing.ComputerAction{Action: "drag", Path: []viewing.Point{{X: in.X, Y: in.Y}, {X: in.ToX, Y: in.ToY}}})
	})
	add(s, "computer_type", "Type text", "Type where the focus is.", changes, does(ops.SandboxGet, ops.SandboxFind, ops.ComputerAct), func(ctx context.Context, c *call, in typeArgs) (computerOut, error) {
		return c.act(ctx, in.Sandbox, viewing.ComputerAction{Action: "type", Text: in.Text})
	})
	add(s, "computer_keypress", "Press keys", "Press keys at once.", changes, does(ops.SandboxGet, ops.SandboxFind, ops.ComputerAct), func(ctx context.Context, c *call, in keyArgs) (computerOut, error) {
		return c.act(ctx, in.Sandbox, viewing.ComputerAction{Action: "key", Keys: in.Keys})
	})
	add(s, "computer_clipboard", "Use the clipboard", "Read the clipboard, or set it.", changes, does(ops.SandboxGet, ops.SandboxFind, ops.ComputerAct), clipboard)
}

// clipboard reads the clipboard, or puts a text into it. A long text is shown in
// part.
func clipboard(ctx context.Context, c *call, in clipboardArgs) (out clipboardOut, err error) {
	b, err := c.sandbox(ctx, in.Sandbox)
	if err != nil {
		return out, err
	}
	text := in.Set
	if text != "" {
		err = b.SetClipboard(ctx, text)
	} else {
		text, err = b.Clipboard(ctx)
	}
	if err != nil {
		return out, err
	}
	var shown excerpt
	_, _ = shown.Write([]byte(text))
	out.Text, out.Bytes = shown.text()
	return out, nil
}

// act carries out an action. A screenshot follows the result as an image.
func (c *call) act(ctx context.Context, ref string, do viewing.ComputerAction) (computerOut, error) {
	b, err := c.sandbox(ctx, ref)
	if err != nil {
		return computerOut{}, err
	}
	out, err := b.UseComputer(ctx, viewing.ComputerRequest{Actions: []viewing.ComputerAction{do}})
	if err != nil || out.Screenshot == nil {
		return computerOut{}, err
	}
	c.content = []mcp.Content{&mcp.ImageContent{Data: out.Screenshot.PNG, MIMEType: "image/png"}}
	return computerOut{out.Screenshot.Width, out.Screenshot.Height}, nil
}
