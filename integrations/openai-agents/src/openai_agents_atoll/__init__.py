"""Atoll as a sandbox provider of the OpenAI Agents SDK.

Import this package before a RunState is read from JSON: that registers the provider.
"""

from openai_agents_atoll.client import AtollSandboxClient
from openai_agents_atoll.options import AtollSandboxClientOptions, AtollSandboxSessionState
from openai_agents_atoll.session import AtollSandboxSession

__all__ = ["AtollSandboxClient", "AtollSandboxClientOptions", "AtollSandboxSession", "AtollSandboxSessionState"]
