from lib import *

# A stopped member of a group that becomes orphaned gets SIGHUP and SIGCONT.
r, w = os.pipe()


def parent():
    os.setpgid(0, 0)

    def member():
        for s in (signal.SIGHUP, signal.SIGCONT):
            signal.signal(s, lambda n, _: os.write(w, signal.Signals(n).name.encode() + b"\n"))
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.1)
        return 0

    pid = child(member)
    print(wait(pid, os.WUNTRACED), flush=True)
    return 0


print(wait(child(parent)))
seen = b""
until(lambda: select.select([r], [], [], 0)[0])
time.sleep(0.3)
print(sorted(os.read(r, 100).decode().split()))

# The default stop of a terminal has no effect in an orphaned group.
number = Gate()


def second():
    def member():
        os.setpgid(0, 0)
        os.write(number.w, str(os.getpid()).encode())
        until(lambda: os.getppid() != second_pid)
        for s in (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
            os.kill(os.getpid(), s)
        os.write(w, b"not stopped\n")
        return 0

    second_pid = os.getpid()
    child(member)
    return 0


os.waitpid(child(second), 0)
member = int(os.read(number.r, 10))
print(os.read(r, 100).decode().strip() if select.select([r], [], [], 5)[0] else "stopped")
end(member)
