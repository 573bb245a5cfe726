package egress

import (
	"maps"
	"net/netip"
	"sync"

	"github.com/atoll-run/atoll/internal/gateway/messages"
	"github.com/atoll-run/atoll/internal/policy"
)

// maxNames limits the number of names of one sandbox that have addresses. With
// a wildcard rule, code in the sandbox can invent names.
const maxNames = 1 << 15

// names assigns synthetic addresses: one for each name, for the life of the
// sandbox.
type names struct {
	made func(name string, n uint16) // called for every new name

	mu     sync.RWMutex
	byName map[string]uint16
	byAddr map[uint16]string
	next   uint16
}

// newNames continues with given names. They may come from a snapshot, so
// invalid ones are ignored.
func newNames(given map[string]uint16, made func(string, uint16)) *names {
	n := &names{made: made, byName: map[string]uint16{}, byAddr: map[uint16]string{}, next: 1}
	for name, number := range given {
		host, err := policy.ParseHost(name)
		if _, taken := n.byAddr[number]; err != nil || host.Name != name || taken || number == 0 || len(n.byName) >= maxNames {
			continue
		}
		n.byName[name], n.byAddr[number] = number, name
	}
	return n
}

// addr returns the address of a name, or false if there are too many names.
func (n *names) addr(name string) (netip.Addr, bool) {
	n.mu.RLock()
	number, known := n.byName[name]
	n.mu.RUnlock()
	if known {
		return messages.SyntheticAddr(number), true
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if number, known = n.byName[name]; known {
		return messages.SyntheticAddr(number), true
	}
	if len(n.byName) >= maxNames {
		return netip.Addr{}, false
	}
	for n.next == 0 || n.byAddr[n.next] != "" {
		n.next++ // the range has twice as many numbers as maxNames
	}
	number = n.next
	n.byName[name], n.byAddr[number] = number, name
	n.made(name, number)
	return messages.SyntheticAddr(number), true
}

// name returns the name behind a synthetic address.
func (n *names) name(a netip.Addr) (string, bool) {
	number, ok := messages.SyntheticNumber(a)
	if !ok {
		return "", false
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	name, ok := n.byAddr[number]
	return name, ok
}

// all returns all names with their numbers.
func (n *names) all() map[string]uint16 {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return maps.Clone(n.byName)
}
