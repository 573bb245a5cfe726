package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"github.com/atoll-run/atoll/internal/machine"
	"github.com/atoll-run/atoll/sandbox"
)

// epochs has the highest epoch that was seen of each session. A request for an
// earlier one comes from a daemon that does not know yet that another sandbox
// serves the session. It is safe for concurrent use.
type epochs struct {
	path string

	mu    sync.Mutex
	marks map[string]mark
	turn  int64
}

// mark is the newest epoch of a session.
type mark struct {
	Epoch int64 `json:"epoch"`
	Turn  int64 `json:"turn"` // when it was raised, among the others
}

const (
	maxEpochs  = 4096 // sessions; those that were raised least recently are forgotten
	maxSession = 64   // bytes of an id
)

// openEpochs reads the epochs of an earlier process.
func openEpochs(path string) (*epochs, error) {
	e := &epochs{path: path, marks: map[string]mark{}}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return e, nil
	}
	if err == nil {
		err = json.Unmarshal(text, &e.marks)
	}
	if err != nil {
		return nil, &sandbox.Error{
			Code: sandbox.CodeInternal, Op: "machine.serve", Subject: path, Message: "the epochs of sessions cannot be read: " + err.Error(),
			Hint: "remove the file; requests that come too late are then let through",
		}
	}
	for _, m := range e.marks {
		e.turn = max(e.turn, m.Turn)
	}
	return e, nil
}

// check refuses a request for an earlier epoch of a session than was seen, and
// notes a later one before anything is done for it. 0 is always let through.
func (e *epochs) check(session string, epoch int64) error {
	if epoch == 0 {
		return nil
	}
	if len(session) > maxSession {
		return &sandbox.Error{Code: sandbox.CodeInvalid, Op: "machine.fence", Subject: "session", Message: "the id is too long"}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	former := e.marks[session]
	seen := former.Epoch
	switch {
	case epoch == seen:
		return nil
	case epoch < seen:
		return &sandbox.Error{
			Code: sandbox.CodeStale, Op: "machine.fence", Subject: session,
			Message: fmt.Sprintf("the session is at epoch %d on this machine, and the request is for epoch %d", seen, epoch), Hint: "ask again for the sandbox of the session",
		}
	}
	e.turn++
	e.marks[session] = mark{epoch, e.turn}
	if len(e.marks) > maxEpochs {
		e.forget()
	}
	err := machine.WriteFile(e.path, e.marks)
	if err != nil {
		e.marks[session] = former
	}
	return err
}

// forget forgets the session that was raised least recently.
func (e *epochs) forget() {
	oldest, at := "", e.turn
	for session, m := range e.marks {
		if m.Turn < at {
			oldest, at = session, m.Turn
		}
	}
	delete(e.marks, oldest)
}
