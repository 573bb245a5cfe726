from lib import *

r, w = os.pipe()


told = []


def tell(name):
    def handler(n, _):
        os.write(w, f"{name} {signal.Signals(n).name}\n".encode())
        told.append(n)

    return handler


def collect(n):
    got = b""
    while got.count(b"\n") < n:
        if not select.select([r], [], [], 5)[0]:
            break
        got += os.read(r, 100)
    return sorted(got.decode().splitlines())


# The terminal goes away.
def leader():
    signal.signal(signal.SIGHUP, tell("leader"))
    os.write(w, b"ready\n")
    until(lambda: told)
    return 0


pid, master = on_terminal(leader)
print(collect(1))
os.close(master)
print(collect(1))
print(wait(pid))


# The leader of the session ends: its foreground group is hung up, and the
# terminal belongs to nobody.
def leader2():
    def job():
        signal.signal(signal.SIGHUP, tell("job"))
        os.setpgid(0, 0)
        os.write(w, b"ready\n")
        until(lambda: told)
        os.write(w, ("terminal " + str(attempt(os.open, "/dev/tty", os.O_RDWR)) + "\n").encode())
        return 0

    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    pid = child(job)
    os.setpgid(pid, pid)
    os.tcsetpgrp(0, pid)
    until(lambda: os.tcgetpgrp(0) == pid)
    time.sleep(0.2)
    return 0


pid, master = on_terminal(leader2)
print(collect(1))
print(wait(pid))
print(collect(2))
