from lib import *


def run():
    print("a new session:", os.setsid() == os.getpid(), os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid())
    print("again:", attempt(os.setsid))
    print("terminal:", attempt(os.open, "/dev/tty", os.O_RDWR))
    print("tty_nr and tpgid:", stat("self")[4:6])
    print("leader moves:", attempt(os.setpgid, 0, 0))
    sys.stdout.flush()


wait(child(run))

gate = Gate()
pid = child(gate.wait)
print("own group:", attempt(os.setpgid, pid, pid), os.getpgid(pid) == pid)
print("a missing group:", attempt(os.setpgid, pid, 2**22 - 3))
print("negative:", attempt(os.setpgid, pid, -1))
gate.open()
wait(pid)

gate = Gate()
ready = Gate()


def other():
    os.setsid()
    ready.open()
    gate.wait()


pid = child(other)
ready.wait()
print("in another session:", attempt(os.setpgid, pid, pid))
print("session of it:", os.getsid(pid) == pid)
print("its group:", attempt(os.setpgid, 0, pid))
gate.open()
wait(pid)

gate = Gate()
pid = os.fork()
if pid == 0:
    os.dup2(gate.r, 0)
    os.execvp("cat", ["cat"])
time.sleep(0.3)
print("after exec:", attempt(os.setpgid, pid, pid))
os.kill(pid, signal.SIGKILL)
wait(pid)
print("of a stranger:", attempt(os.setpgid, 1, 1) in ("ESRCH", "EPERM"))
