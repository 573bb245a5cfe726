package driver

import "context"

// Cursor is how far the streams of a command have come, in bytes since its
// start.
type Cursor struct {
	Stdin, Stdout, Stderr int64
}

// Rejoiner is implemented by instances whose commands can be connected to
// again after a connection was cut, so that not a byte is lost or doubled.
type Rejoiner interface {
	// Rejoin connects to a background command, or to one with a Hold, whose
	// earlier connection then ends. Output follows from the cursor. Where that
	// is not kept any more, Rejoin is CodeExhausted, or with skip begins with
	// the oldest byte kept. A background command that writes faster than the
	// caller reads may overwrite what the caller has yet to read: then reading
	// is CodeExhausted.
	//
	// The cursor that is returned is where output begins, and how much input
	// the command's pipe or terminal has taken: the caller goes on from there.
	Rejoin(ctx context.Context, id string, from Cursor, skip bool) (Process, Cursor, error)
}

// Detacher is implemented by processes whose command can outlive them.
type Detacher interface {
	// Detach lets go as if the connection had been cut: a command with a Hold
	// waits for its caller to rejoin, any other does as on Close.
	Detach() error
}
