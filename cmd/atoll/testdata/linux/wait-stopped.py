from lib import *

gate = Gate()
pid = child(lambda: (os.kill(os.getpid(), signal.SIGSTOP), gate.wait())[1])
print(wait(pid, os.WUNTRACED))
print("again:", wait(pid, os.WUNTRACED | os.WNOHANG))
print("state", stat(pid)[0])
os.kill(pid, signal.SIGCONT)
print(wait(pid, os.WCONTINUED))
gate.open()
print(wait(pid))

# In a group of its own, which is not orphaned: SIGTSTP does not stop one that is.
pid = child(lambda: (os.setpgid(0, 0), os.kill(os.getpid(), signal.SIGTSTP), gate.wait())[2])
info = os.waitid(os.P_PID, pid, os.WSTOPPED)
print(info.si_code == os.CLD_STOPPED, info.si_status == signal.SIGTSTP, info.si_pid == pid)
os.kill(pid, signal.SIGCONT)
info = os.waitid(os.P_PID, pid, os.WCONTINUED)
print(info.si_code == os.CLD_CONTINUED, info.si_status == signal.SIGCONT)
gate.open()
info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
print(info.si_code == os.CLD_EXITED, info.si_status)
print(wait(pid))
print(attempt(os.waitpid, pid, 0))
