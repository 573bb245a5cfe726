"""Finds the public methods of the SDK by reflection, and records which
are called, so that untested methods are detected."""

import functools
import inspect
import re
import sys

import e2b

SKIP = re.compile(r"^e2b\.(api|envd|volume\.client|connection_config|client|exceptions|io_utils|paginator|retry)\b")
codes = set()  # code objects of all called functions of the SDK


def noting(fn):
    code = inspect.unwrap(fn).__code__

    @functools.wraps(fn)
    def noted(*args, **kwargs):
        codes.add(code)
        return fn(*args, **kwargs)

    return noted


def watch():
    """Records from now on which methods are called. It replaces the methods, because
    sys.setprofile with many threads crashed Python 3.11."""
    for module in [m for m in sys.modules if re.match(r"e2b(_code_interpreter|_desktop)?\b", m) and not SKIP.match(m)]:
        for cls in [c for c in vars(sys.modules[module]).values() if inspect.isclass(c) and c.__module__ == module]:
            for name, attr in list(vars(cls).items()):
                if not name.startswith("__"):
                    replace(cls, name, attr)


def replace(cls, name, attr):
    if inspect.isfunction(attr):
        setattr(cls, name, noting(attr))
    elif isinstance(attr, (staticmethod, classmethod)):
        setattr(cls, name, type(attr)(noting(attr.__func__)))
    elif hasattr(attr, "__dict__") and not inspect.isclass(attr):
        for key, fn in list(vars(attr).items()):
            if inspect.isfunction(fn):
                setattr(attr, key, noting(fn))


def functions(attr):
    """The functions behind an attribute: a method may be one of the class and one of the instance."""
    seen = [attr]
    if not inspect.isfunction(attr):
        seen += [v for v in vars(attr).values()] if hasattr(attr, "__dict__") else []
        seen += [getattr(attr, "__func__", None), getattr(attr, "fget", None)]
    for one in seen:
        one = getattr(one, "__func__", one)
        if inspect.isfunction(one):
            yield inspect.unwrap(one).__code__


def variants(cls, attr):
    """An attribute that is one method of the class and another of the instance."""
    other = getattr(attr, "class_method_name", None)
    return [attr] + ([inspect.getattr_static(cls, other)] if other else [])


def classes(sync):
    for module in [m for m in sys.modules if m.startswith("e2b.")]:
        if SKIP.match(module) or ("async" if sync else "_sync") in module:
            continue
        for name, cls in vars(sys.modules[module]).items():
            if inspect.isclass(cls) and cls.__module__ == module and not name.startswith("_") and not issubclass(cls, (BaseException, dict, tuple)):
                if not name.startswith("Async") or not sync:
                    yield cls


def own(cls):
    """The same for the methods that a class adds, without the inherited ones."""
    out = {}
    for name, attr in vars(cls).items():
        behind = [] if name.startswith("_") or isinstance(attr, property) else list(functions(attr))
        if behind:
            out[f"{cls.__name__.removeprefix('Async')}.{name}"] = any(c in codes for c in behind)
    return out


def report(sync):
    """Reports for each method whether a case called it."""
    out = {}
    for cls in classes(sync):
        if not re.search(r"Sandbox$|SandboxApi$|Commands$|Filesystem$|Pty$|Git$|Handle$|Paginator$|Volume$|Secret$|Template\w*$", cls.__name__):
            continue
        for name, attr in vars(cls).items():
            if name.startswith("_") or inspect.isclass(attr) or isinstance(attr, property):
                continue
            own = [c for one in variants(cls, attr) for c in functions(one)]
            if own:
                key = f"{cls.__name__.removeprefix('Async')}.{name}"
                out[key] = out.get(key, False) or any(c in codes for c in own)
    return out
