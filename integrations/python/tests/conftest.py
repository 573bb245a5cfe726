from scripts.daemon import _alone, anyio_backend, daemon, program

__all__ = ["_alone", "anyio_backend", "daemon", "program"]
