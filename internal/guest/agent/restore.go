package agent

import (
	"crypto/rand"
	"encoding/hex"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/atoll-run/atoll/internal/guest/wire"
)

// This file handles a restore. A sandbox restored from a snapshot continues
// where it was, but its connections are gone or replaced: the pipes of the
// first connection are new and nothing reads the rest of a message that was
// begun. All later connections are dead.
//
// The provider announces the restore with a nonce on the door, a descriptor
// that is replaced, too. The guest closes all connections and thereby ends the
// foreground commands, whose callers are gone. It writes the nonce to its
// output pipe and waits for the nonce on its input pipe. It discards everything
// that arrives there before it.

// awaitRestores serves the first connection after every restore.
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
		a.generation.renew()
		a.restored.Store(true)
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

// renewIdentity gives a copy of a sandbox a new machine ID. The kernel's
// randomness needs no change: its generator is not a part of a snapshot. What
// programs keep in memory is up to them: see generation.
func renewIdentity() {
	st := unix.Stat_t{}
	if unix.Lstat(machineID, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size != 33 {
		return // it is missing or has another form
	}
	id := make([]byte, 16)
	if _, err := rand.Read(id); err != nil {
		return
	}
	_ = os.WriteFile(machineID, []byte(hex.EncodeToString(id)+"\n"), 0o444)
}
