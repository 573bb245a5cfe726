from lib import *
import tempfile

with tempfile.TemporaryFile() as f:
    fd = f.fileno()
    os.ftruncate(fd, 10 << 20)
    print("size", os.fstat(fd).st_size)
    print("blocks of an empty file:", "none" if os.fstat(fd).st_blocks < 100 else "as many as its size")
    os.pwrite(fd, b"x", 5 << 20)
    print("SEEK_DATA:", attempt(os.lseek, fd, 0, os.SEEK_DATA))
    print("SEEK_HOLE:", attempt(os.lseek, fd, 0, os.SEEK_HOLE))
    print("SEEK_DATA beyond:", attempt(os.lseek, fd, 11 << 20, os.SEEK_DATA))
    print("reads zeros:", os.pread(fd, 4096, 0) == bytes(4096))
