"""The asynchronous client, from which scripts/generate.py makes the synchronous one."""
