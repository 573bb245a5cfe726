from lib import *


def run():
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    me = os.getpid()
    print("leads:", os.tcgetpgrp(0) == me, os.tcgetpgrp(0) == os.getpgrp(), os.getsid(0) == me)
    print("stat:", int(stat("self")[5]) == me, stat("self")[4] != "0")

    def group(f):
        def inner():
            os.setpgid(0, 0)
            return f()

        return child(inner)

    pid = group(lambda: len(os.read(0, 1)))
    print("reads:", wait_soon(pid, os.WUNTRACED))
    end(pid)

    def ignoring():
        signal.signal(signal.SIGTTIN, signal.SIG_IGN)
        return {"EIO": 1}.get(attempt(os.read, 0, 1), 2)

    print("reads, ignoring:", wait_soon(group(ignoring)))
    print("writes:", wait_soon(group(lambda: os.write(1, b"") or 0), os.WUNTRACED))
    modes = termios.tcgetattr(0)
    modes[3] |= termios.TOSTOP
    termios.tcsetattr(0, termios.TCSANOW, modes)
    pid = group(lambda: os.write(1, b"x") and 0)
    print("writes with tostop:", wait_soon(pid, os.WUNTRACED))
    end(pid)
    pid = group(lambda: termios.tcsetattr(0, termios.TCSANOW, modes))
    print("sets modes:", wait_soon(pid, os.WUNTRACED))
    end(pid)
    pid = group(lambda: os.tcsetpgrp(0, os.getpid()))
    print("takes the foreground:", wait_soon(pid, os.WUNTRACED))
    end(pid)
    gate = Gate()
    pid = group(gate.wait)
    until(lambda: os.getpgid(pid) == pid)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    os.tcsetpgrp(0, pid)
    print("given the foreground:", os.tcgetpgrp(0) == pid)
    gate.open()
    print(wait_soon(pid))
    os.tcsetpgrp(0, me)
    print("taken back:", os.tcgetpgrp(0) == me)
    print("a missing group:", attempt(os.tcsetpgrp, 0, 2**22 - 3))
    print("THE END")


pid, master = on_terminal(lambda: (run(), sys.stdout.flush())[1])
out = b""
while b"THE END" not in out:
    try:
        out += os.read(master, 4096)
    except OSError:
        break
print(out.decode().replace("\r\n", "\n").strip())
print(wait(pid))
