from lib import *

count = 0


def note(*_):
    global count
    count += 1


signal.signal(signal.SIGCHLD, note)
pid = child(signal.pause)
os.kill(pid, signal.SIGSTOP)
wait(pid, os.WUNTRACED)
until(lambda: count == 1)
os.kill(pid, signal.SIGCONT)
wait(pid, os.WCONTINUED)
until(lambda: count == 2)
os.kill(pid, signal.SIGKILL)
wait(pid)
until(lambda: count == 3)
print("SIGCHLD for stop, continue and end:", count)

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
pid = child(lambda: 3)
print("ignored:", attempt(os.waitpid, pid, 0))
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
print(wait(child(lambda: 3)))
