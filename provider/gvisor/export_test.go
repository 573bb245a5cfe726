package gvisor

// Ready counts the sandboxes of the pool, and those whose memory comes from a
// snapshot.
func (p *Provider) Ready() (all, restored int) {
	p.pool.mu.Lock()
	defer p.pool.mu.Unlock()
	for s, sh := range p.pool.shelves {
		all += len(sh.ready)
		if s.from != "" {
			restored += len(sh.ready)
		}
	}
	return all, restored
}

// SetScarce replaces what tells whether the machine has too little memory for a
// pool. It comes before anything else is done with the provider.
func (p *Provider) SetScarce(scarce func() bool) { p.pool.scarce = scarce }

// MakeRoom does what is done about a sandbox that stands still.
func (in *Instance) MakeRoom() { in.makeRoom() }

// Stub is a host process that stands for an address space inside.
type Stub struct {
	PID    int
	Spared bool
}

// Stubs lists those of a sandbox, the oldest first.
func (in *Instance) Stubs() (list []Stub) {
	for _, s := range in.stubs() {
		list = append(list, Stub{s.pid, s.score == scoreSpared})
	}
	return list
}

// Kernel is the host process that the sandbox's kernel is.
func (in *Instance) Kernel() int { return in.rec.Kernel.PID }
