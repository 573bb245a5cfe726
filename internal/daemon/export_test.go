package daemon

import "time"

// SetWall gives a daemon a clock that can be set.
func SetWall(o *Options, now func() time.Time) { o.wall = now }

// SetMemory replaces the function that returns free and total memory.
func (o *Options) SetMemory(memory func() (free, total int64)) { o.memory = memory }
