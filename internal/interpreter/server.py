"""The server of the code interpreter: contexts, and streams of what code does.

A context is a kernel, a process that keeps variables. Server and kernel talk
over two pipes, in lines of JSON: requests go to descriptor 3, messages come
from descriptor 4. What code prints comes over the kernel's own outputs, so that
programs which it starts are heard, too. At the end of each request the kernel
writes a mark to both outputs, which says that nothing is under way any more.
"""

import codecs
import functools
import json
import os
import queue
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HERE = os.path.dirname(os.path.abspath(__file__))
HOME = os.getcwd()  # of contexts that name none
PORT = 49999
MAX_BODY = 64 << 20
SILENCE = 5  # seconds after which a stream says that it lives
GRACE = 5  # seconds that code may go on after an interrupt, before its kernel is ended
PATIENCE = 3  # seconds that a mark may be late, when code closed its outputs

LANGUAGES = {
    "python": [sys.executable, os.path.join(HERE, "kernel.py")],
    "javascript": ["node", os.path.join(HERE, "kernel.js")],
    "bash": ["bash", os.path.join(HERE, "kernel.sh")],
    "typescript": ["node", os.path.join(HERE, "kernel.js"), "typescript"],
    "r": ["Rscript", "--vanilla", os.path.join(HERE, "kernel.R")],
    "java": ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", os.path.join(HERE, "Kernel.java")],
}
PLAIN = ("r", "java")  # their kernels read no JSON
# What tells whether more than the program is there.
CHECKS = {
    "typescript": ["node", os.path.join(HERE, "kernel.js"), "typescript", "check"],
    "java": ["java", "--describe-module", "jdk.jshell"],
}
ALIASES = {"js": "javascript", "ts": "typescript", "py": "python", "python3": "python", "sh": "bash", "shell": "bash"}


@functools.lru_cache(None)
def available(language):
    """Whether the image has what a kernel needs."""
    if shutil.which(LANGUAGES[language][0]) is None:
        return False
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return language not in CHECKS or subprocess.run(CHECKS[language], **quiet).returncode == 0


class Refused(Exception):
    """An answer other than success."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


def hexadecimal(request):
    """The code and the environment of a request."""
    env = "\0".join("%s=%s" % pair for pair in request["env"].items())
    return "%s %s" % (request["code"].encode().hex() or "-", env.encode().hex() or "-")


class Kernel:
    """A process that executes code. One execution happens at a time."""

    def __init__(self, language, cwd):
        request, self.requests = os.pipe()
        self.messages, message = os.pipe()
        self.plain = language in PLAIN
        self.mark = "\x00end of %s\x00" % uuid.uuid4()
        self.lock = threading.Lock()  # of requests
        self.events = queue.Queue()
        self.died = False
        env = dict(os.environ, ATOLL_KERNEL_MARK=self.mark.replace("\x00", ""))
        try:
            # A kernel finds its pipes at 3 and 4, which are nothing else here.
            self.process = subprocess.Popen(
                LANGUAGES[language], cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                pass_fds=(3, 4), preexec_fn=lambda: (os.dup2(request, 3), os.dup2(message, 4)), start_new_session=True)
        except OSError as e:
            os.close(self.requests)
            os.close(self.messages)
            raise Refused(400, "the context cannot be started: %s" % e)
        finally:
            os.close(request)
            os.close(message)
        for name, stream in (("stdout", self.process.stdout), ("stderr", self.process.stderr)):
            threading.Thread(target=self.read_output, args=(name, stream), daemon=True).start()
        threading.Thread(target=self.read_messages, daemon=True).start()

    def read_output(self, name, stream):
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        pending = ""
        while True:
            data = os.read(stream.fileno(), 65536)
            pending += decoder.decode(data, not data)
            while self.mark in pending:
                text, pending = pending.split(self.mark, 1)
                self.output(name, text)
                self.events.put({"type": "mark"})
            # The beginning of a mark waits for its end.
            keep = next((n for n in range(min(len(self.mark), len(pending)), 0, -1) if pending.endswith(self.mark[:n])), 0) if data else 0
            self.output(name, pending[:len(pending) - keep])
            pending = pending[len(pending) - keep:]
            if not data:
                stream.close()
                return

    def output(self, name, text):
        if text:
            self.events.put({"type": name, "text": text, "timestamp": int(time.time() * 1e6)})

    def read_messages(self):
        with os.fdopen(self.messages, "rb") as messages:
            for line in messages:
                try:
                    event = json.loads(line)
                except ValueError:
                    continue  # whoever wrote that was not the kernel
                if isinstance(event, dict):
                    self.events.put(event)
        self.process.wait()
        self.died = True

    def send(self, request):
        data = (hexadecimal(request) if self.plain else json.dumps(request)).encode() + b"\n"
        with self.lock:
            if self.requests is None:
                return
            requests = os.dup(self.requests)  # the number may be another file's after close
        try:
            while data:
                data = data[os.write(requests, data):]
        except OSError:
            pass  # it has died, which its messages say
        finally:
            os.close(requests)

    def interrupt(self):
        self.signal(signal.SIGINT)

    def signal(self, number):
        try:
            os.killpg(self.process.pid, number)
        except OSError:
            pass

    def close(self):
        self.signal(signal.SIGKILL)
        with self.lock:
            requests, self.requests = self.requests, None
        if requests is not None:  # once: after that the number may be a caller's connection
            os.close(requests)


class Context:
    def __init__(self, language, cwd):
        self.id, self.language, self.cwd = str(uuid.uuid4()), language, cwd
        self.lock = threading.Lock()  # of who executes
        self.kernel = None
        self.count = 0
        self.closed = False

    def describe(self):
        return {"id": self.id, "language": self.language, "cwd": self.cwd}

    def start(self):
        if self.closed:
            raise Refused(404, "Context %s not found" % self.id)
        if self.kernel is not None and self.kernel.died:
            self.stop()
        if self.kernel is None:
            self.kernel = Kernel(self.language, self.cwd)
        return self.kernel

    def stop(self):
        kernel, self.kernel = self.kernel, None
        if kernel is not None:
            kernel.close()

    def execute(self, code, env, limit, gone):
        """Yields what the code does. It is interrupted after limit seconds, if
        that is not None, or when gone says that nobody listens."""
        while not self.lock.acquire(timeout=0.2):
            if gone():
                return
            yield None
        try:
            kernel = self.start()
            self.count += 1
            yield {"type": "number_of_executions", "execution_count": self.count}
            while not kernel.events.empty():
                kernel.events.get()  # what was printed between two executions
            kernel.send({"code": code, "env": env, "count": self.count})
            until = None if limit is None else time.monotonic() + limit
            late = yield from self.follow(kernel, until, gone)
            yield dict({"type": "end_of_execution"}, **({"timed_out": True} if late else {}))
        finally:
            self.lock.release()

    def follow(self, kernel, limit, gone):
        """Yields what the kernel says about an execution, and returns whether it
        was interrupted at the limit."""
        marks, until, interrupted, late, look = 0, None, None, False, 0  # until is set when the kernel is done
        while until is None or marks < 2 and time.monotonic() < until:
            now = time.monotonic()
            if now > look:
                look = now + 0.2
                late = late or interrupted is None and limit is not None and now > limit
                if interrupted is None and (late or gone()):
                    kernel.interrupt()
                    interrupted = now
                elif interrupted is not None and now > interrupted + GRACE:
                    kernel.close()
            try:
                event = kernel.events.get(timeout=0.05 if until or marks else 0.2)
            except queue.Empty:
                if kernel.died:
                    if self.kernel is kernel:
                        self.stop()
                    yield {"type": "error", "name": "KernelDied", "value": "the kernel ended with status %s" % kernel.process.returncode, "traceback": ""}
                    return late
                yield None
                continue
            kind = event.get("type")
            if kind == "mark":
                marks += 1
            elif kind == "done":
                until = time.monotonic() + PATIENCE
            else:
                yield event
        return late


class Contexts:
    def __init__(self):
        self.lock = threading.Lock()
        self.all = {}
        self.default = {}
        for language in ("python", "javascript"):  # which begin when they are used
            if available(language):
                self.of_language(language)

    def language(self, name):
        name = (name or "python").lower()
        name = ALIASES.get(name, name)
        if name not in LANGUAGES or not available(name):
            raise Refused(400, "there is no kernel for %s here, but for %s" % (name, ", ".join(sorted(filter(available, LANGUAGES)))))
        return name

    def make(self, language, cwd):
        cwd = cwd or HOME
        if not os.path.isdir(cwd):
            raise Refused(400, "the directory %s does not exist" % cwd)
        context = Context(self.language(language), cwd)
        with context.lock:
            context.start()
        with self.lock:
            self.all[context.id] = context
        return context

    def get(self, key):
        with self.lock:
            context = self.all.get(key)
        if context is None:
            raise Refused(404, "Context %s not found" % key)
        return context

    def of_language(self, name):
        name = self.language(name)
        with self.lock:
            context = self.default.get(name)
            if context is None or context.closed:
                context = self.default[name] = Context(name, HOME)
                self.all[context.id] = context
        return context

    def interrupt(self, key):
        context = self.get(key)
        kernel = context.kernel
        if kernel is not None and context.lock.locked():  # one at rest may not expect it
            kernel.interrupt()

    def remove(self, key):
        context = self.get(key)
        with self.lock:
            self.all.pop(key, None)
        context.closed = True
        context.stop()

    def list(self):
        with self.lock:
            return [c.describe() for c in self.all.values()]


contexts = Contexts()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "atoll"
    sys_version = ""

    def log_message(self, *args):
        pass

    def read_body(self):
        """Takes all of the request from the connection, whatever becomes of
        it: what is left would be taken for the next request."""
        try:
            if "Transfer-Encoding" in self.headers:
                self.sent = b"".join(self.chunks())
            else:
                self.sent = self.rfile.read(self.fitting(int(self.headers.get("Content-Length") or 0)))
        except ValueError:
            self.close_connection = True
            raise Refused(400, "the request is malformed")

    def fitting(self, size):
        if size < 0:
            raise ValueError(size)
        if size > MAX_BODY:
            self.close_connection = True
            raise Refused(413, "the request is too large")
        return size

    def chunks(self):
        total, size = 0, 1
        while size:
            size = int(self.rfile.readline(1024).split(b";")[0], 16)
            total = self.fitting(total + self.fitting(size))
            yield self.rfile.read(size)
            while self.rfile.readline(1024).strip() and not size:
                pass  # trailers

    def body(self):
        try:
            body = json.loads(self.sent or b"{}")
        except ValueError:
            raise Refused(400, "the request is not JSON")
        if not isinstance(body, dict):
            raise Refused(400, "the request is no object")
        return body

    def answer(self, status, value):
        data, kind = (value.encode(), "text/plain") if isinstance(value, str) else (json.dumps(value).encode(), "application/json")
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def route(self):
        path = self.path.split("?")[0].strip("/").split("/")
        method = self.command
        if (method, path) == ("GET", ["health"]):
            return self.answer(200, "OK")
        if (method, path) == ("GET", ["contexts"]):
            return self.answer(200, contexts.list())
        if (method, path) == ("POST", ["contexts"]):
            body = self.body()
            return self.answer(200, contexts.make(body.get("language"), body.get("cwd")).describe())
        if (method, path) == ("POST", ["execute"]):
            return self.execute(self.body())
        if len(path) >= 2 and path[0] == "contexts":
            if (method, len(path)) == ("DELETE", 2):
                contexts.remove(path[1])
                return self.answer(200, "")
            if (method, len(path)) == ("GET", 2):
                return self.answer(200, contexts.get(path[1]).describe())
            if (method, path[2:]) == ("POST", ["restart"]):
                contexts.get(path[1]).stop()
                return self.answer(200, "")
            if (method, path[2:]) == ("POST", ["interrupt"]):
                contexts.interrupt(path[1])
                return self.answer(200, "")
        raise Refused(404, "there is no such route")

    def gone(self):
        """Whether the caller has closed the connection."""
        ready, _, _ = select.select([self.connection], [], [], 0)
        if not ready:
            return False
        try:
            return not self.connection.recv(1, 2)  # MSG_PEEK
        except OSError:
            return True

    def execute(self, body):
        code, key, language = body.get("code"), body.get("context_id"), body.get("language")
        env, limit = body.get("env_vars") or {}, body.get("timeout")
        if not isinstance(code, str) or not isinstance(env, dict) or not isinstance(limit, (int, float, type(None))):
            raise Refused(400, "the request has no code")
        if key and language:
            raise Refused(400, "Only one of context_id or language can be provided")
        context = contexts.get(key) if key else contexts.of_language(language)
        events = context.execute(code, {str(k): str(v) for k, v in env.items()}, limit, self.gone)
        first = next(events, None)  # a kernel that cannot start is an answer and no stream
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.stream(first, events)

    def stream(self, event, events):
        said, broken = time.monotonic(), False
        while True:
            if event is None and time.monotonic() - said > SILENCE:
                event = {"type": "keepalive"}
            if event is not None and not broken:
                try:
                    self.chunk(json.dumps(event).encode() + b"\n")
                    said = time.monotonic()
                except OSError:
                    broken = True  # the code is interrupted, and heard to its end
            try:
                event = next(events)
            except StopIteration:
                break
            except Refused as e:  # too late for a status: the answer has begun
                event, events = {"type": "error", "name": "Refused", "value": str(e), "traceback": ""}, iter(())
        if broken:
            self.close_connection = True
            return
        try:
            self.chunk(b"")
        except OSError:
            self.close_connection = True

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def serve(self):
        try:
            self.read_body()
            self.route()
        except Refused as e:
            self.answer(e.status, str(e))
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    do_GET = do_POST = do_DELETE = serve


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


if __name__ == "__main__":
    for fd in (3, 4):
        os.dup2(os.open(os.devnull, os.O_RDWR), fd)
    server = Server(("127.0.0.1", PORT), Handler)
    print("ready", flush=True)
    server.serve_forever()
