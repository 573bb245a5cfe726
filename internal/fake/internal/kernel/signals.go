package kernel

import (
	"strconv"
	"strings"
)

var signalNames = map[string]int{
	"EXIT": 0, "HUP": 1, "INT": 2, "QUIT": 3, "KILL": 9, "USR1": 10, "USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": 15,
	"CHLD": 17, "CONT": 18, "STOP": 19, "WINCH": 28,
}

// SignalNumber returns the number of a signal given by number or by name.
func SignalNumber(name string) (int, bool) {
	if n, err := strconv.Atoi(name); err == nil {
		return n, n >= 0 && n <= 64
	}
	n, ok := signalNames[strings.TrimPrefix(name, "SIG")]
	return n, ok
}
