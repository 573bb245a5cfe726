from lib import *


def run():
    got = []
    for s in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(s, lambda n, _: got.append(print("got", signal.Signals(n).name, flush=True)))
    signal.signal(signal.SIGTSTP, signal.SIG_DFL)

    def job():
        os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pause()

    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    print("ready", flush=True)
    until(lambda: len(got) == 2)
    for key in ("Z", "C"):
        pid = child(job)
        until(lambda: os.getpgid(pid) == pid)
        os.tcsetpgrp(0, pid)
        time.sleep(0.1)
        print("job", key, flush=True)
        print(wait(pid, os.WUNTRACED), flush=True)
        os.tcsetpgrp(0, os.getpid())
        if key == "Z":
            os.kill(pid, signal.SIGKILL)
            wait(pid)
    print("END", flush=True)


pid, master = on_terminal(run)
print(read_until(master, b"ready"))
os.write(master, b"\x03")
print(read_until(master, b"got SIGINT"))
os.write(master, b"\x1c")
print(read_until(master, b"got SIGQUIT"))
print(read_until(master, b"job Z"))
os.write(master, b"\x1a")
print(read_until(master, b"stopped by SIGTSTP"))
print(read_until(master, b"job C"))
os.write(master, b"\x03")
print(read_until(master, b"killed by SIGINT"))
print(read_until(master, b"END"))
print(wait(pid))
