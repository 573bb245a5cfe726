package agent

import (
	"crypto/rand"
	"encoding/hex"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/guest/wire"
)

// This file is how process 1 finds itself in another sandbox than before. A
// sandbox restored from a snapshot goes on in the middle of whatever it did,
// but everything that led out of it is gone or was exchanged: the pipes of the
// first connection are others, with nobody reading what was begun to be said,
// and all later connections lead nowhere.
//
// So the provider says on the door, another descriptor that is exchanged, that
// this has happened, with a nonce. The guest ends all connections, and with
// them the commands in the foreground, whose callers are not here. It says the
// nonce on the pipe that it speaks on and waits for it on the one that it
// listens on, and whatever came before it there belongs to the past.

// awaitRestores serves the first connection of every further life.
func (a *agent) awaitRestores() {
	if openable(wire.Door, unix.S_IFIFO) != nil {
		return // this sandbox cannot be restored
	}
	door := os.NewFile(wire.Door, "door")
	for {
		nonce := make([]byte, wire.NonceLen)
		if _, err := io.ReadFull(door, nonce); err != nil {
			return
		}
		a.links.closeAll()
		renewIdentity()
		link, err := openFirstLink()
		if err != nil {
			continue
		}
		if _, err = link.Write(nonce); err == nil {
			err = wire.SkipPast(link, nonce)
		}
		if err != nil {
			link.Close()
			continue
		}
		go a.serve(link)
	}
}

const machineID = "/etc/machine-id"

// renewIdentity makes this sandbox another machine than the one that it was
// copied from, as far as a file says which. Randomness needs no help: the
// kernel's own is not a part of a snapshot.
func renewIdentity() {
	st := unix.Stat_t{}
	if unix.Lstat(machineID, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != 33 {
		return // there is none, or it is not of the usual form
	}
	id := make([]byte, 16)
	if _, err := rand.Read(id); err != nil {
		return
	}
	_ = os.WriteFile(machineID, []byte(hex.EncodeToString(id)+"\n"), 0o444)
}
