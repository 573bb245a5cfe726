package viewing

// ComputerAction is one action on the desktop of a sandbox. Which fields an
// action takes is in the description of each field.
type ComputerAction struct {
	Action string `json:"action" enum:"screenshot,cursor,move,click,down,up,drag,scroll,type,key,wait,copy,clipboard" doc:"screenshot and cursor only look; wait does nothing for durationMs; copy puts a text into the clipboard, and clipboard reads it"`
	// X and Y are where it happens, in pixels from the upper left; nil: at the
	// pointer.
	X *int `json:"x,omitempty" minimum:"0" maximum:"65535" doc:"pixels from the left, together with y; where the pointer is if left out"`
	Y *int `json:"y,omitempty" minimum:"0" maximum:"65535" doc:"pixels from the top"`
	// Button is of click, down, up and drag; empty: left.
	Button string `json:"button,omitempty" enum:"left,middle,right,back,forward" doc:"of click, down, up and drag; left if left out"`
	Count  int    `json:"count,omitempty" minimum:"0" maximum:"100" doc:"clicks, or presses of a key; 1 if left out"`
	// Keys are the chord of the action key, and held during other actions. Names
	// are those of X11, or common ones such as ctrl, enter and ArrowUp.
	Keys []string `json:"keys,omitempty" maxItems:"8" doc:"of key: the keys to press together; of others: keys to hold, such as ctrl"`
	// Path is at least two points of a drag.
	Path []Point `json:"path,omitempty" maxItems:"1000" doc:"of drag: at least two points"`
	// ScrollX and ScrollY are pixels, to the right and down; a notch is 100.
	ScrollX int    `json:"scrollX,omitempty" minimum:"-100000" maximum:"100000" doc:"of scroll: pixels to the right; 100 are one notch of the wheel, at most 15 notches"`
	ScrollY int    `json:"scrollY,omitempty" minimum:"-100000" maximum:"100000" doc:"of scroll: pixels down"`
	Text    string `json:"text,omitempty" maxLength:"1048576" doc:"of type, at most 10000 characters; of copy, at most 1 MiB, and nothing clears the clipboard"`
	// DurationMS is of wait, and of key: how long the keys stay down.
	DurationMS int64 `json:"durationMs,omitempty" minimum:"0" maximum:"300000" doc:"of wait, and of key: how long to hold the keys"`
	// Region is a part of the screen for a screenshot; nil: all.
	Region *Region `json:"region,omitempty" doc:"of screenshot: a part of the screen"`
}

// Point is a place on a screen, in pixels from the upper left.
type Point struct {
	X int `json:"x" minimum:"0" maximum:"65535"`
	Y int `json:"y" minimum:"0" maximum:"65535"`
}

// Region is a rectangle of a screen.
type Region struct {
	Point
	Width  int `json:"width" minimum:"1" maximum:"65535"`
	Height int `json:"height" minimum:"1" maximum:"65535"`
}

// ComputerRequest asks for actions, in order. The first that fails ends it.
type ComputerRequest struct {
	Actions []ComputerAction `json:"actions" nullable:"false" minItems:"1" maxItems:"100" doc:"in order; the first that fails ends the request"`
	// ReadOnly refuses every action but screenshot, cursor and wait. The clipboard
	// may have a password.
	ReadOnly bool `json:"readOnly,omitempty" doc:"refuse all actions that are more than looking"`
}

const (
	// MaxTyped is the maximum number of characters that one action types.
	MaxTyped = 10_000
	// MaxClipboard is the maximum number of bytes of a clipboard.
	MaxClipboard = 1 << 20
)

// ComputerResult is what the actions returned: the last of each kind.
type ComputerResult struct {
	Cursor     *Point      `json:"cursor,omitempty" doc:"of the last cursor"`
	Screenshot *Screenshot `json:"screenshot,omitempty" doc:"the last one"`
	// Clipboard is a pointer, because a clipboard may be empty.
	Clipboard *string `json:"clipboard,omitempty" doc:"text of the clipboard, when it was read last"`
}

// Screenshot is a picture of a screen. It is never empty.
type Screenshot struct {
	PNG    []byte `json:"png" doc:"a PNG image, in Base64"`
	Width  int    `json:"width"`
	Height int    `json:"height"`
}

// Screen is the size of a desktop. The zero value is 1280×800 at 96 dpi, or what
// the desktop has already.
type Screen struct {
	Width  int `json:"width,omitempty" minimum:"0" maximum:"7680" doc:"pixels, together with height; 1280 if left out, or what it has"`
	Height int `json:"height,omitempty" minimum:"0" maximum:"4320" doc:"pixels; 800 if left out, or what it has"`
	DPI    int `json:"dpi,omitempty" minimum:"0" maximum:"480" doc:"96 if left out"`
}

// DesktopState is a desktop that runs.
type DesktopState struct {
	Width  int `json:"width"`
	Height int `json:"height"`
	// Port is of its VNC server, inside; 0: none was asked for.
	Port uint16 `json:"port,omitempty" doc:"of its VNC server, inside the sandbox; left out if none was started"`
}
