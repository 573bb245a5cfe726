from lib import *
import ctypes

prctl = ctypes.CDLL(None).prctl
r, w = os.pipe()


def middle():
    def inner():
        prctl(1, signal.SIGUSR1, 0, 0, 0)
        told = []
        signal.signal(signal.SIGUSR1, lambda *_: told.append(os.write(w, b"told\n")))
        g.open()
        until(lambda: told)

    g = Gate()
    child(inner)
    g.wait()
    return 0


print(wait(child(middle)))
print(os.read(r, 100).decode().strip())

print(prctl(36, 1, 0, 0, 0))  # a subreaper


def middle2():
    def inner():
        until(lambda: os.getppid() == top)
        return 9

    child(inner)
    return 0


top = os.getpid()
print(wait(child(middle2)))
print("adopted:", wait(-1))
