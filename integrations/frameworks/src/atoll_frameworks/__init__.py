"""Atoll as a sandbox for agent frameworks. Each module needs its framework: see the extras of this package."""
