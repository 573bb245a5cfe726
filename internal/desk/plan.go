package desk

import (
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/atoll-run/atoll/sandbox/viewing"
)

// step is an action as a command.
type step struct {
	args    []string
	stdin   string
	pause   time.Duration // instead of a command
	extra   time.Duration // that the command may take
	shot    bool
	cursor  bool
	paste   bool // it reads the clipboard
	changes bool // it does more than look
}

var buttons = map[string]string{"": "1", "left": "1", "middle": "2", "right": "3", "back": "8", "forward": "9"}

// The numbers of the wheel's buttons.
const (
	wheelUp, wheelDown, wheelLeft, wheelRight = "4", "5", "6", "7"

	maxNotches = 15
	notch      = 100 // pixels
)

// The picture goes through a file: scrot takes the format from its name.
const shotScript = `f=$(mktemp -d) || exit 1; trap 'rm -rf "$f"' EXIT; scrot "$@" "$f/s.png" && cat "$f/s.png"`

// The clipboard has an owner, which stays; its complaints are written before. A
// clipboard without text is empty, and not an error.
const (
	copyScript  = `f=$(mktemp) || exit; xclip -selection clipboard -in >/dev/null 2>"$f"; r=$?; cat "$f" >&2; rm -f "$f"; exit $r`
	pasteScript = `f=$(mktemp) || exit; xclip -selection clipboard -target UTF8_STRING -out 2>"$f"; r=$?; grep -q "not available" "$f" && r=0 || cat "$f" >&2; rm -f "$f"; exit $r`
)

// plan turns an action into a command. A request is refused before anything of
// it happens.
func plan(a *viewing.ComputerAction) (s step, err error) {
	if (a.X == nil) != (a.Y == nil) {
		return s, invalid("x", "give both x and y, or none")
	}
	if a.X != nil && (*a.X < 0 || *a.Y < 0) {
		return s, invalid("x", "is negative")
	}
	button, ok := buttons[a.Button]
	if !ok {
		return s, invalid("button", "is none of left, middle, right, back and forward")
	}
	if a.Count < 0 || a.Count > 100 {
		return s, invalid("count", "must be between 1 and 100")
	}
	count := strconv.Itoa(max(1, a.Count))
	switch a.Action {
	case "wait":
		s.pause = max(time.Millisecond, time.Duration(a.DurationMS)*time.Millisecond)
		return s, nil
	case "screenshot":
		s.args, s.shot = screenshotArgs(a.Region), true
		return s, nil
	case "cursor":
		s.args, s.cursor = []string{"xdotool", "getmouselocation", "--shell"}, true
		return s, nil
	}
	s.changes = true
	switch a.Action {
	case "copy":
		s.args, s.stdin = []string{"/bin/sh", "-c", copyScript, "copy"}, a.Text
		if len(a.Text) > viewing.MaxClipboard {
			err = invalid("text", "is larger than 1 MiB")
		}
		return s, err
	case "clipboard": // it may have a password that somebody copied
		s.args, s.paste = []string{"/bin/sh", "-c", pasteScript, "clipboard"}, true
		return s, nil
	}
	if s.args, err = names(a.Keys); err != nil {
		return s, err
	}
	keys := s.args
	var do []string
	switch a.Action {
	case "move":
		if a.X == nil {
			return s, invalid("x", "is missing")
		}
	case "click":
		do = []string{"click", "--repeat", count, "--delay", "60", button}
	case "down":
		do = []string{"mousedown", button}
	case "up":
		do = []string{"mouseup", button}
	case "drag":
		do, err = drag(a.Path, button)
		s.extra = time.Duration(len(a.Path)) * typing
	case "scroll":
		do, err = scroll(a.ScrollX, a.ScrollY)
	case "type":
		if a.Text == "" {
			err = invalid("text", "is missing")
		} else if utf8.RuneCountInString(a.Text) > viewing.MaxTyped {
			err = invalid("text", "is longer than %d characters; copy it, and paste it with a key", viewing.MaxTyped)
		}
		do, s.stdin = []string{"type", "--delay", delay(a.Text), "--file", "-"}, a.Text
		s.extra = time.Duration(len(a.Text)) * typing
	case "key":
		do, err = chord(keys, count, a.DurationMS)
		s.extra = time.Duration(a.DurationMS) * time.Millisecond
		keys = nil
	default:
		err = invalid("action", "is not known")
	}
	s.args = append([]string{"xdotool"}, wrap(at(a), keys, do)...)
	return s, err
}

func screenshotArgs(r *viewing.Region) []string {
	args := []string{"/bin/sh", "-c", shotScript, "screenshot", "--pointer", "--silent"}
	if r != nil {
		part := make([]string, 0, 4)
		for _, n := range []int{r.X, r.Y, r.Width, r.Height} {
			part = append(part, strconv.Itoa(n))
		}
		args = append(args, "--autoselect", strings.Join(part, ","))
	}
	return args
}

func moveTo(x, y int) []string { return []string{"mousemove", strconv.Itoa(x), strconv.Itoa(y)} }

func at(a *viewing.ComputerAction) []string {
	if a.X == nil {
		return nil
	}
	return moveTo(*a.X, *a.Y)
}

// wrap holds keys during something.
func wrap(before, keys, do []string) (all []string) {
	all = append(all, before...)
	for _, k := range keys {
		all = append(all, "keydown", k)
	}
	all = append(all, do...)
	for _, k := range slices.Backward(keys) {
		all = append(all, "keyup", k)
	}
	return all
}

func drag(path []viewing.Point, button string) ([]string, error) {
	if len(path) < 2 {
		return nil, invalid("path", "needs at least two points")
	}
	var all []string
	for i, p := range path {
		if p.X < 0 || p.Y < 0 {
			return nil, invalid("path", "is negative")
		}
		all = append(all, moveTo(p.X, p.Y)...)
		if i == 0 {
			all = append(all, "mousedown", button)
		}
		all = append(all, "sleep", "0.02") // programs combine motions that come at once
	}
	return append(all, "mouseup", button), nil
}

func scroll(x, y int) ([]string, error) {
	var all []string
	for _, way := range []struct {
		pixels     int
		less, more string
	}{{y, wheelUp, wheelDown}, {x, wheelLeft, wheelRight}} {
		button, pixels := way.more, way.pixels
		if pixels < 0 {
			button, pixels = way.less, -pixels
		}
		if pixels > 0 {
			n := min(maxNotches, max(1, (pixels+notch/2)/notch))
			all = append(all, "click", "--repeat", strconv.Itoa(n), "--delay", "10", button)
		}
	}
	if all == nil {
		return nil, invalid("scrollY", "give scrollX or scrollY")
	}
	return all, nil
}

// delay returns the pause between characters. For one that the keyboard does not
// have, xdotool changes the keyboard, which programs see a little later.
func delay(text string) string {
	for _, r := range text {
		if r > unicode.MaxASCII {
			return "120"
		}
	}
	return "12"
}

func chord(keys []string, count string, hold int64) ([]string, error) {
	if len(keys) == 0 {
		return nil, invalid("keys", "are missing")
	}
	if hold == 0 {
		return []string{"key", "--repeat", count, "--delay", "12", strings.Join(keys, "+")}, nil
	}
	return wrap(nil, keys, []string{"sleep", strconv.FormatFloat(float64(hold)/1000, 'f', -1, 64)}), nil
}

// keysyms are names of keys that X does not know by that name, in lower case.
var keysyms = map[string]string{
	"enter": "Return", "return": "Return", "esc": "Escape", "escape": "Escape", "tab": "Tab", "space": "space", " ": "space", "backspace": "BackSpace",
	"delete": "Delete", "del": "Delete", "insert": "Insert", "home": "Home", "end": "End", "pageup": "Prior", "page_up": "Prior", "pagedown": "Next", "page_down": "Next",
	"up": "Up", "down": "Down", "left": "Left", "right": "Right", "arrowup": "Up", "arrowdown": "Down", "arrowleft": "Left", "arrowright": "Right",
	"ctrl": "Control_L", "control": "Control_L", "alt": "Alt_L", "option": "Alt_L", "shift": "Shift_L", "meta": "Super_L", "super": "Super_L", "cmd": "Super_L", "command": "Super_L", "win": "Super_L",
	"capslock": "Caps_Lock", "caps_lock": "Caps_Lock", "numlock": "Num_Lock", "printscreen": "Print", "print": "Print", "menu": "Menu",
	"+": "plus", "-": "minus", "/": "slash", "\\": "backslash", ".": "period", ",": "comma", ";": "semicolon", "'": "apostrophe", "`": "grave", "=": "equal", "[": "bracketleft", "]": "bracketright",
	"!": "exclam", "@": "at", "#": "numbersign", "$": "dollar", "%": "percent", "^": "asciicircum", "&": "ampersand", "*": "asterisk", "(": "parenleft", ")": "parenright", "_": "underscore", "?": "question", ":": "colon", "\"": "quotedbl", "<": "less", ">": "greater", "{": "braceleft", "}": "braceright", "|": "bar", "~": "asciitilde",
}

// names returns X's names of keys. A name may be a chord, such as ctrl+s.
func names(keys []string) ([]string, error) {
	var all []string
	for _, k := range keys {
		parts := strings.Split(k, "+")
		if keysyms[k] != "" {
			parts = []string{k}
		}
		for _, part := range parts {
			name := part
			lower := strings.ToLower(part)
			if known := keysyms[lower]; known != "" {
				name = known
			} else if n, err := strconv.Atoi(strings.TrimPrefix(lower, "f")); err == nil && lower[0] == 'f' && n >= 1 && n <= 24 {
				name = "F" + strconv.Itoa(n)
			}
			if !isName(name) {
				return nil, invalid("keys", "%q is not the name of a key", part)
			}
			all = append(all, name)
		}
	}
	return all, nil
}

func isName(name string) bool {
	for _, r := range name {
		if r != '_' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') {
			return false
		}
	}
	return name != "" && len(name) <= 32
}
