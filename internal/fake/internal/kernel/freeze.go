package kernel

// Freeze keeps every process from going on: each stands still at its next
// step, or where it waits, until Thaw or its death. Freezing twice is the same
// as once.
func (k *Kernel) Freeze() {
	thawed := make(chan struct{})
	k.frozen.CompareAndSwap(nil, &thawed)
}

// Thaw lets the processes go on.
func (k *Kernel) Thaw() {
	if thawed := k.frozen.Swap(nil); thawed != nil {
		close(*thawed)
	}
}

// Frozen returns a channel that is closed by Thaw, nil while nothing is frozen.
func (k *Kernel) Frozen() <-chan struct{} {
	if thawed := k.frozen.Load(); thawed != nil {
		return *thawed
	}
	return nil
}

// gate is where a process stands while the kernel is frozen.
func (p *Proc) gate() {
	for {
		thawed := p.K.Frozen()
		if thawed == nil {
			return
		}
		select {
		case <-thawed:
		case <-p.ctx.Done():
			return
		}
	}
}
