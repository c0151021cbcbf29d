"""Keeps the calls of schemathesis inside the test's directory.

Schemathesis loads this file by the setting `hooks`. The bodies of generated calls name any directory and any program.
Here they name the test's directory and the demo agent, so that no program of the machine is run.
"""

import os

import schemathesis

WORK = os.environ["AGENTD_WORK"]
RUN = ("command", "conversation", "directories", "mcp", "parent", "repos", "workflow", "workspace")


def tame(value):
    """Replaces directories and agents, and removes the fields that name programs and other places."""
    if isinstance(value, list):
        return [tame(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {name: tame(item) for name, item in value.items() if name not in RUN}
    if "directory" in kept:
        kept["directory"] = WORK
    if "agent" in kept:
        kept["agent"] = "demo"
    return kept


@schemathesis.hook
def map_body(context, body):
    return tame(body)
