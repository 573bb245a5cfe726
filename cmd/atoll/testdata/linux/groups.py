from lib import *

pids = []
for _ in range(3):
    pids.append(child(signal.pause))
    os.setpgid(pids[-1], pids[0])
print(attempt(os.killpg, pids[0], 0))
os.killpg(pids[0], signal.SIGSTOP)
print([wait(p, os.WUNTRACED) for p in pids])
os.killpg(pids[0], signal.SIGCONT)
print([wait(p, os.WCONTINUED) for p in pids])
os.killpg(pids[0], signal.SIGTERM)
print([wait(-pids[0] if i else p) for i, p in enumerate(pids)])
print(attempt(os.killpg, pids[0], 0))
print(attempt(os.waitpid, -pids[0], 0))
