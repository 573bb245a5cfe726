from lib import *

pid = child(signal.pause)
os.kill(pid, signal.SIGSTOP)
print(wait(pid, os.WUNTRACED))
os.kill(pid, signal.SIGTERM)
time.sleep(0.2)
print("while stopped:", wait(pid, os.WNOHANG))
os.kill(pid, signal.SIGCONT)
print(wait(pid))

pid = child(signal.pause)
os.kill(pid, signal.SIGSTOP)
print(wait(pid, os.WUNTRACED))
os.kill(pid, signal.SIGKILL)
print(wait(pid))

# A stop discards a pending SIGCONT, and the reverse.
pid = child(signal.pause)
os.kill(pid, signal.SIGSTOP)
os.kill(pid, signal.SIGCONT)
time.sleep(0.2)
print("state is stopped:", stat(pid)[0] == "T")
os.kill(pid, signal.SIGKILL)
print(wait(pid))

# SIGCONT continues a process that ignores or blocks it.
for how in (lambda: signal.signal(signal.SIGCONT, signal.SIG_IGN), lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCONT])):

    def run():
        how()
        os.kill(os.getpid(), signal.SIGSTOP)
        return 7

    pid = child(run)
    print(wait(pid, os.WUNTRACED))
    os.kill(pid, signal.SIGCONT)
    print(wait(pid))
print(attempt(os.kill, 2**22 - 3, 0))
