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
