"""Atoll as a sandbox of agent frameworks. Each module needs its framework: see the extras of this package."""
