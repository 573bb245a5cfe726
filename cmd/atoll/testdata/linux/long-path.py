from lib import *
import subprocess
import tempfile

os.chdir(tempfile.mkdtemp())
for _ in range(30):
    os.mkdir("n" * 200)
    os.chdir("n" * 200)
print("getcwd:", attempt(lambda: len(os.getcwd()) > 6000))
print("open:", attempt(lambda: os.close(os.open("f", os.O_CREAT | os.O_WRONLY))))
print("a path of 4,096 bytes:", attempt(os.stat, "n/" * 2048))
os.mkdir("d")
r = subprocess.run(["sh", "-c", "cd -P d && echo inside"], capture_output=True, text=True)
print("a shell:", r.stdout.strip(), r.returncode)
