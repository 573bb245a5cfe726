"""The kernel for Python: executes code in one namespace and shows results."""

import ast
import asyncio
import base64
import builtins
import importlib.util
import inspect
import json
import linecache
import os
import re
import signal
import sys
import traceback
import types

MARK = ("\0%s\0" % os.environ.pop("ATOLL_KERNEL_MARK", "")).encode()
HERE = os.path.dirname(os.path.abspath(__file__))

FORMS = {
    "text/html": "html", "text/markdown": "markdown", "image/svg+xml": "svg", "image/png": "png", "image/jpeg": "jpeg",
    "application/pdf": "pdf", "text/latex": "latex", "application/json": "json", "application/javascript": "javascript",
}
METHODS = {
    "_repr_html_": "html", "_repr_markdown_": "markdown", "_repr_svg_": "svg", "_repr_png_": "png", "_repr_jpeg_": "jpeg",
    "_repr_pdf_": "pdf", "_repr_latex_": "latex", "_repr_json_": "json", "_repr_javascript_": "javascript",
}

messages = os.fdopen(4, "w", encoding="utf-8")


def say(message):
    messages.write(json.dumps(message, default=str) + "\n")
    messages.flush()


def plain(value):
    """What has a form of its own, as JSON can carry it."""
    if isinstance(value, tuple):  # data and metadata
        value = value[0]
    return base64.b64encode(value).decode() if isinstance(value, (bytes, bytearray)) else value


def shape(value, main):
    result = {"type": "result", "is_main_result": main, "text": repr(value)[1:-1] if isinstance(value, str) else repr(value)}
    if isinstance(value, type):
        return result
    for method, name in METHODS.items():
        f = getattr(value, method, None)
        if callable(f):
            try:
                form = plain(f())
            except Exception:
                continue  # it cannot be shown so
            if form is not None:
                result[name] = form
    bundle = getattr(value, "_repr_mimebundle_", None)
    if callable(bundle):
        try:
            forms = bundle()
            forms = forms[0] if isinstance(forms, tuple) else forms
            result.update((FORMS[k], plain(v)) for k, v in (forms or {}).items() if k in FORMS)
        except Exception:
            pass
    if type(value).__name__ == "DataFrame" and callable(getattr(value, "to_dict", None)):
        try:
            result["data"] = {str(k): v for k, v in value.to_dict(orient="list").items()}
        except Exception:
            pass
    return result


def display(*values, **_):
    """Shows values, each as a result of its own."""
    for value in values:
        if type(value).__name__ == "Figure" and hasattr(value, "savefig"):
            figure(value)
        elif isinstance(value, dict) and value and all(k in FORMS or k == "text/plain" for k in value):
            result = {FORMS[k]: plain(v) for k, v in value.items() if k in FORMS}
            say(dict(result, type="result", is_main_result=False, text=value.get("text/plain", "")))
        else:
            say(shape(value, False))


def figure(fig):
    """Shows a figure of matplotlib, as a picture and as what it says."""
    import io

    charts = own("charts")
    out = io.BytesIO()
    fig.savefig(out, format="png", bbox_inches="tight")
    result = {"type": "result", "is_main_result": False, "text": str(fig), "png": base64.b64encode(out.getvalue()).decode()}
    try:
        chart = charts.chart(fig)
    except Exception:
        chart = None
    if chart:
        result["chart"] = chart
    say(result)


def own(name):
    """A module of the kernel, whatever lies in the directory of the code."""
    spec = importlib.util.spec_from_file_location("kernel." + name, os.path.join(HERE, name + ".py"))
    module = sys.modules.get(spec.name)
    if module is None:
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def figures(*_, **__):
    """Shows all figures that are open, and closes them."""
    plt = sys.modules.get("matplotlib.pyplot")
    if plt is None:
        return
    for number in plt.get_fignums():
        figure(plt.figure(number))
    plt.close("all")


class Pictures:
    """Finds PIL's images, which are shown where programs would open or save them."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != "PIL.Image":
            return None
        sys.meta_path.remove(cls)
        spec = importlib.util.find_spec(name)
        if spec is not None:
            load = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (load(module), cls.change(module.Image))
        return spec

    @staticmethod
    def change(image):
        save = image.save

        def saved(self, fp, format=None, **params):
            save(self, fp, format, **params)
            if isinstance(fp, (str, os.PathLike)):
                display(self)

        image.save = saved
        image.show = lambda self, *_, **__: display(self)


def offer_ipython():
    """Makes what code expects of IPython's display module."""
    if importlib.util.find_spec("IPython") is None:
        package, module = types.ModuleType("IPython"), types.ModuleType("IPython.display")
        package.__path__ = []
        package.display = module

        def form(name, method):
            def init(self, data=None, **_):
                self.data = data
            return type(name, (), {"__init__": init, method: lambda self: self.data, "__repr__": lambda self: "<IPython.core.display.%s object>" % name})

        for name, method in (("HTML", "_repr_html_"), ("Markdown", "_repr_markdown_"), ("SVG", "_repr_svg_"), ("Latex", "_repr_latex_"),
                             ("JSON", "_repr_json_"), ("Javascript", "_repr_javascript_"), ("Image", "_repr_png_")):
            setattr(module, name, form(name, method))
        sys.modules.update({"IPython": package, "IPython.display": module})
    else:
        import IPython.display as module
    module.display = display


def shell(line):
    """Runs a line that began with an exclamation mark."""
    import subprocess

    sys.stdout.flush()
    subprocess.run(line, shell=True, executable="/bin/bash" if os.path.exists("/bin/bash") else None)


def without_magic(code):
    """Makes Python of lines that only notebooks know."""
    lines = []
    for line in code.split("\n"):
        m = re.match(r"(\s*)(?:!|%(?=pip ))(.*)$", line)
        if m:
            command = m.group(2)
            command = re.sub(r"^pip ", "%s -m pip " % sys.executable, command)
            line = "%s__shell__(%r)" % (m.group(1), command)
        lines.append(line)
    return "\n".join(lines)


space = {"__name__": "__main__", "__builtins__": builtins, "__shell__": shell, "display": display}
main = types.ModuleType("__main__")
main.__dict__.update(space)
sys.modules["__main__"] = main
space = main.__dict__
loop = asyncio.new_event_loop()
asyncio.set_event_loop(loop)


def dedented(code):
    """Takes the indentation of the first line away from all lines, as IPython does."""
    indent = re.match(r"(?:[ \t]*\n)*([ \t]*)", code).group(1)
    if not indent:
        return code
    return "".join(line.removeprefix(indent) for line in code.splitlines(True))


def execute(code, name):
    code = dedented(code)
    try:
        tree = ast.parse(code, name)
    except SyntaxError:
        code = without_magic(code)
        tree = ast.parse(code, name)
    linecache.cache[name] = (len(code), None, code.splitlines(True), name)
    if "IPython" in code:
        offer_ipython()
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    # A semicolon at the end keeps the value back, as in notebooks.
    if last is not None and code.rstrip().endswith(";"):
        tree.body.append(last)
        last = None
    run(compile(tree, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
    if last is not None:
        value = run(compile(ast.Expression(last.value), name, "eval", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
        if value is not None:
            space["_"] = value
            figures()
            say(shape(value, True))


def run(compiled):
    value = eval(compiled, space)
    if compiled.co_flags & inspect.CO_COROUTINE:
        return loop.run_until_complete(value)
    return value


def tell(error):
    """Says what went wrong, without the kernel's own frames."""
    tb = error.__traceback__
    while tb is not None and os.path.dirname(tb.tb_frame.f_code.co_filename) == HERE:
        tb = tb.tb_next
    text = "".join(traceback.format_exception(type(error), error, tb))
    say({"type": "error", "name": type(error).__name__, "value": str(error), "traceback": text})


def serve(request):
    old = {k: os.environ.get(k) for k in request["env"]}
    os.environ.update(request["env"])
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        execute(request["code"], "<cell %d>" % request["count"])
        figures()
    except SystemExit as e:
        tell(e)
    except BaseException as e:
        tell(e)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for k, v in old.items():
            if v is None:
                os.environ.pop(k, None)
            else:
                os.environ[k] = v
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
    say({"type": "done"})
    for fd in (1, 2):
        data = MARK
        while data:
            data = data[os.write(fd, data):]


if __name__ == "__main__":
    # The name of the module is the code's from here on.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["MPLBACKEND"] = "module://kernel.inline"
    sys.meta_path.insert(0, Pictures)
    sys.path[:] = [""] + [p for p in sys.path if p != HERE]
    sys.argv = [""]
    inline = types.ModuleType("kernel")
    inline.figures = figures
    inline.__path__ = [HERE]
    sys.modules["kernel"] = inline
    for line in os.fdopen(3, encoding="utf-8"):
        serve(json.loads(line))
