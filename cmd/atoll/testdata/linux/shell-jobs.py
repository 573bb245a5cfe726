from lib import *

signal.alarm(55)  # a busy machine
pid, master = pty.fork()
if pid == 0:
    os.environ["PS1"] = "$ "
    os.execvp("bash", ["bash", "--norc", "--noprofile", "--noediting", "-i"])


def say(line, expect):
    os.write(master, line)
    print(line, read_until(master, expect, 20))


print(read_until(master, b"$ "))
# In the foreground. gVisor can lose a stop during an exec, so there is none here.
say(b"python3 -c 'import time; print(\"runs\", flush=True); time.sleep(1000)'\n", b"runs\r\n")
say(b"\x1a", b"Stopped")
say(b"jobs\n", b"Stopped                 python3")
say(b"bg\n", b"&")
say(b"jobs\n", b"Running                 python3")
say(b"fg\n", b"python3")
time.sleep(1)
say(b"\x03", b"$ ")
say(b"echo code $?\n", b"code 130")
say(b"sleep 1001 & until grep -q sleep /proc/$!/comm; do sleep 0.1; done; kill -STOP %1; until jobs | grep Stopped; do sleep 0.1; done\n", b"Stopped                 sleep 1001")
say(b"kill -CONT %1; until jobs | grep Running; do sleep 0.1; done\n", b"Running                 sleep 1001")
say(b"kill %1; wait %1; echo code $?\n", b"code 143")
os.write(master, b"exit 7\n")
print(wait(pid))
