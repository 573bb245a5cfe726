package agent

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// meetingPoint is the abstract socket on which process 1 receives connections.
// An abstract name needs no file system. The kernel checks the peer's user.
const meetingPoint = "@atoll-guest"

// handOverTime limits a hand-over on both sides.
const handOverTime = 5 * time.Second

// listen accepts connections that root hands over on a rendezvous socket. It
// never returns.
func (a *agent) listen(point string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: point}); err != nil {
		unix.Close(fd)
		return err
	}
	if err := unix.Listen(fd, 64); err != nil {
		unix.Close(fd)
		return err
	}
	l := os.NewFile(uintptr(fd), "listener")
	conn, err := l.SyscallConn()
	if err != nil {
		l.Close()
		return err
	}
	go func() {
		for {
			peer := -1
			err := conn.Read(func(fd uintptr) bool {
				var err error
				peer, _, err = unix.Accept4(int(fd), unix.SOCK_CLOEXEC)
				return err != unix.EAGAIN
			})
			if err != nil {
				return
			}
			if peer >= 0 {
				go a.receive(peer)
			} else {
				time.Sleep(10 * time.Millisecond) // accept can fail when no descriptors are left
			}
		}
	}()
	return nil
}

// receive takes one connection from a peer and serves it if the peer is root.
func (a *agent) receive(peer int) {
	fds, err := takeLink(peer)
	if err != nil {
		unix.Close(peer)
		return
	}
	_, _ = unix.Write(peer, []byte{1})
	unix.Close(peer)
	if link, err := openLink(fds); err == nil {
		a.serve(link)
	} else {
		closeFDs(fds)
	}
}

// takeLink receives the descriptors of a hand-over.
func takeLink(peer int) ([]int, error) {
	cred, err := unix.GetsockoptUcred(peer, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return nil, err
	}
	if cred.Uid != 0 {
		return nil, unix.EPERM
	}
	if err := setTimeout(peer); err != nil {
		return nil, err
	}
	oob := make([]byte, unix.CmsgSpace(2*4))
	_, n, flags, _, err := unix.Recvmsg(peer, make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return nil, err
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(msgs) != 1 || flags&unix.MSG_CTRUNC != 0 {
		return nil, unix.EINVAL
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) < 1 || len(fds) > 2 {
		closeFDs(fds)
		return nil, unix.EINVAL
	}
	return fds, nil
}

func setTimeout(fd int) error {
	tv := unix.NsecToTimeval(int64(handOverTime))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		return err
	}
	return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv)
}

// handOver runs the guest as "connect": it passes its connection to process 1.
func handOver() int { return offer(meetingPoint, linkFDs()) }

// refused is the exit status of offer when nothing listens on the socket.
const refused = 2

// offer passes a connection to the guest that listens at point. It returns 0 or
// an exit status that identifies the failure.
func offer(point string, fds []int) int {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 1
	}
	defer unix.Close(fd)
	if err := setTimeout(fd); err != nil {
		return 1
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: point}); err != nil {
		return refused
	}
	// The listener must be the guest itself, which runs as root.
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil || cred.Uid != 0 {
		return 3
	}
	if err := unix.Sendmsg(fd, []byte{0}, unix.UnixRights(fds...), nil, 0); err != nil {
		return 4
	}
	if n, err := unix.Read(fd, make([]byte, 1)); err != nil || n != 1 {
		return 5
	}
	return 0
}
