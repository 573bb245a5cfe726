package daemon

import "time"

// SetWall gives a daemon a clock that can be set.
func SetWall(o *Options, now func() time.Time) { o.wall = now }
