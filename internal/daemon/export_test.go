package daemon

import "time"

// SetWall gives a daemon a clock that can be set.
func SetWall(o *Options, now func() time.Time) { o.wall = now }

// SetMemory replaces what tells how much memory is free, and how much there is.
func (o *Options) SetMemory(memory func() (free, total int64)) { o.memory = memory }
