package coreutils

import (
	"fmt"
	"io"
	"net"

	"github.com/atoll-run/atoll/internal/fake/internal/kernel"
)

// echod listens on a free port, says which, and sends back what it gets.
func echod(p *kernel.Proc) int {
	l, err := p.Listen(0)
	if err != nil {
		p.Errorf("listen: %v", err)
		return 1
	}
	fmt.Fprintln(p.Stream(1), l.Port)
	for {
		conn, err := l.Accept()
		if err != nil {
			return 1
		}
		go func(conn net.Conn) {
			defer conn.Close()
			_, _ = io.Copy(conn, conn)
		}(conn)
	}
}
