package driver

import "context"

// Cursor is an offset in each stream of a command, in bytes since its start.
type Cursor struct {
	Stdin, Stdout, Stderr int64
}

// Rejoiner is implemented by instances whose commands can be reconnected after
// a connection was lost, without losing or repeating a byte.
type Rejoiner interface {
	// Rejoin connects to a background command, or to one with a Hold. An earlier
	// connection to the command ends. Output begins at the cursor from. If that
	// output is not kept any more, Rejoin returns CodeExhausted, or with skip
	// begins with the oldest byte kept. If a background command writes faster than
	// the caller reads, unread output can be dropped; reading then returns
	// CodeExhausted.
	//
	// The returned cursor is where output begins, and how much input has been
	// written to the command's pipe or terminal. The caller continues from there.
	Rejoin(ctx context.Context, id string, from Cursor, skip bool) (Process, Cursor, error)
}

// Backgrounder is implemented by processes that can outlive their caller after
// all.
type Backgrounder interface {
	// Background makes a command on a terminal that was started with a Hold a
	// background command: it goes on when its caller closes the process or is
	// lost, and others can reconnect to it. Any other command is CodeConflict; a
	// sandbox of an older version is CodeUnsupported. The process stays connected.
	Background(ctx context.Context) error
}

// Detacher is implemented by processes whose command can outlive the
// connection.
type Detacher interface {
	// Detach drops the connection as if it had been lost. A command with a Hold
	// waits for its caller to rejoin; a background command keeps running. The
	// processes of any other command get SIGHUP, and SIGKILL 10 s later.
	Detach() error
}
