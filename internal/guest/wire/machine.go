package wire

import (
	"encoding/base64"
	"encoding/json"
)

// MachineArg, as the first argument of a guest, says that it is the first
// process of a virtual machine. The second argument is an encoded [Machine].
const MachineArg = "machine"

// Machine configures the guest of a virtual machine. It is visible in the
// machine and contains no secrets.
type Machine struct {
	Layers  int      `json:"layers"`         // number of disks with the image, top first
	PIDs    int64    `json:"pids,omitempty"` // processes and threads; 0: no limit
	Memory  int64    `json:"memory,omitempty"`
	CPUs    float64  `json:"cpus,omitempty"`
	Link    bool     `json:"link,omitempty"` // it has a network card
	MTU     int      `json:"mtu,omitempty"`
	Address []string `json:"address,omitempty"` // of the card, without a prefix length
}

// The names of a virtual machine's devices: the serial numbers of its disks and
// the names of its ports.
const (
	DiskImage = "image" // followed by a number, from 0
	DiskFiles = "files" // the writable layer, an ext4 file system
	PortLink  = "link"  // carries a connection; followed by a number, from 0
	PortDoor  = "door"  // carries calls: see DoorCall
)

// ModulesDir has the kernel modules of a virtual machine, in the order of their
// names.
const ModulesDir = "/modules"

// MachineLinks is the number of connections that a virtual machine can have at
// once.
const MachineLinks = 8

// A call on the door of a virtual machine: one of these bytes, the number of a
// link, the time in nanoseconds since 1970 as eight bytes, little-endian, and a
// nonce.
const (
	DoorLink     = 'l' // a new connection replaces the one on the link
	DoorRestored = 'r' // the same, after the machine was restored from a snapshot
	DoorTime     = 't' // only the time
	DoorStop     = 's' // write everything to the disk and stop; there is no answer
	DoorHeader   = 1 + 1 + 8
	DoorCall     = DoorHeader + NonceLen
)

// Encode returns the argument for the guest.
func (m *Machine) Encode() string {
	text, err := json.Marshal(m)
	if err != nil { // of numbers and strings
		panic(err)
	}
	return base64.RawURLEncoding.EncodeToString(text)
}

// DecodeMachine parses the argument of a guest.
func DecodeMachine(text string) (m Machine, err error) {
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	return m, err
}
