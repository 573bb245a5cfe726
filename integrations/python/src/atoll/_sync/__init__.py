# Generated from _async by scripts/generate.py; do not edit.
"""The asynchronous client, from which scripts/generate.py makes the synchronous one."""
