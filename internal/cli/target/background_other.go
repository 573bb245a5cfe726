//go:build !linux

package target

import "context"

const (
	logName  = "daemon.log"
	LockName = "daemon.lock"
)

func (e *Env) StartDaemon(context.Context, string, []string) (pid int, err error) {
	return 0, ClientOnly("no daemon can run on this machine")
}
