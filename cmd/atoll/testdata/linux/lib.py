"""What the programs of this directory share."""

import fcntl
import errno
import os
import pty
import select
import signal
import struct
import sys
import termios
import time

signal.alarm(30)


def child(run):
    """Run a function in a child process, which exits with its result."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        try:
            os._exit(run() or 0)
        except OSError as e:
            os._exit(100 + e.errno % 100)
        finally:
            os._exit(99)
    return pid


def wait(pid, flags=0):
    """Wait for a child, and say what happened to it."""
    got, status = os.waitpid(pid, flags)
    if got == 0:
        return "nothing"
    if os.WIFSTOPPED(status):
        return "stopped by " + signal.Signals(os.WSTOPSIG(status)).name
    if os.WIFCONTINUED(status):
        return "continued"
    if os.WIFSIGNALED(status):
        return "killed by " + signal.Signals(os.WTERMSIG(status)).name
    return f"exited {os.WEXITSTATUS(status)}"


def wait_soon(pid, flags=0):
    """Like wait, but a child to which nothing happens is said to run, and killed."""
    for _ in range(300):
        said = wait(pid, flags | os.WNOHANG)
        if said != "nothing":
            return said
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "runs"


def end(pid):
    """Kill a child that may have ended."""
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except OSError:  # it is not ours, or has ended
        pass


def attempt(call, *args):
    """Call a function, and say its result or error."""
    try:
        r = call(*args)
        return "ok" if r is None else r
    except OSError as e:
        return errno.errorcode[e.errno]


def stat(pid):
    """The fields of /proc/PID/stat from the state on."""
    with open(f"/proc/{pid}/stat") as f:
        return f.read().rsplit(")", 1)[1].split()


def until(condition):
    """Wait until a condition holds."""
    while not condition():
        time.sleep(0.01)


class Gate:
    """A pipe on which one process waits for another."""

    def __init__(self):
        self.r, self.w = os.pipe()

    def open(self):
        os.write(self.w, b"x")

    def wait(self):
        os.read(self.r, 1)


def on_terminal(run):
    """Run a function in a child that leads a session on a new terminal."""
    pid, master = pty.fork()
    if pid == 0:
        signal.alarm(30)
        try:
            os._exit(run() or 0)
        except Exception as e:
            print(repr(e), flush=True)
        finally:
            os._exit(99)
    return pid, master


rest = {}  # what was read from a descriptor after the last text that was awaited


def read_until(fd, text, patience=5):
    """Read from a terminal until a text appears, or nothing does for some seconds."""
    seen = rest.get(fd, b"")
    while text not in seen and select.select([fd], [], [], patience)[0]:
        try:
            part = os.read(fd, 4096)
        except OSError:
            break
        if not part:
            break
        seen += part
    rest[fd] = seen.partition(text)[2]
    return text in seen
