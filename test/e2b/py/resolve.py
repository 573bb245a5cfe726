"""Simulates a wildcard DNS entry: all names below E2B_TEST_NAME resolve to
this machine."""

import os
import socket

NAME = os.environ["E2B_TEST_NAME"]
lookup = socket.getaddrinfo


def getaddrinfo(host, *args, **kwargs):
    name = host.decode() if isinstance(host, bytes) else host
    if name and (name == NAME or name.endswith("." + NAME)):
        host = "127.0.0.1"
    return lookup(host, *args, **kwargs)


socket.getaddrinfo = getaddrinfo
