package spawn

// Plain reports whether package syscall starts programs here. Special makes
// this package start them.
func Plain() bool { return plain.Load() }
func Special()    { plain.Store(false) }

// ForkExecPlain is ForkExec by package syscall.
func ForkExecPlain(path string, argv []string, attr *Attr) (int, error) {
	return attr.forkExec(path, argv)
}
