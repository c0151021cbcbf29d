"""Uses a client that openapi-python-client has generated from the description, on the control socket.

client.py SOCKET DIRECTORY: creates a session of the demo agent in DIRECTORY, prompts it, reads its events, and removes
it. Nothing in this file knows a path, a field or a status of the endpoint but through the generated client.
"""

import json
import sys
import time

import httpx
from agentd_client import Client
from agentd_client.api.daemon import readiness
from agentd_client.api.sessions import create_session, events, prompt, remove_session, session, sessions, set_title
from agentd_client.models import Phase, Problem, PromptRequest, SessionSpecInput, SessionView, TitleRequest

LIMIT = 60  # seconds


def ended(client, name, turn):
    """Waits for the end of a turn, and returns the events up to there."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        lines = events.sync(name, client=client, follow=False)
        found = [json.loads(line) for line in lines.splitlines()]
        if any(event["kind"] == "turn.ended" and event["data"]["turn"] == turn for event in found):
            return found
        time.sleep(0.05)
    raise SystemExit(f"{turn} did not end within {LIMIT} s")


def main(socket, directory):
    transport = httpx.HTTPTransport(uds=socket)
    arguments = {"transport": transport}
    client = Client("http://localhost", timeout=LIMIT, raise_on_unexpected_status=True, httpx_args=arguments)
    assert readiness.sync(client=client).status.value == "ready"

    spec = SessionSpecInput(directory=directory, agent="demo", name="generated")
    created = create_session.sync(client=client, body=spec, wait="60", idempotency_key="one")
    assert isinstance(created, SessionView) and created.status.phase == Phase.IDLE, created
    repeated = create_session.sync(client=client, body=spec, idempotency_key="one")
    assert repeated.id == created.id, repeated
    listed = sessions.sync(client=client)
    assert [item.name for item in listed.sessions] == ["generated"], listed

    accepted = prompt.sync("generated", client=client, body=PromptRequest(prompt="count to 3"))
    found = ended(client, "generated", accepted.turn)
    assert [event["seq"] for event in found] == list(range(1, len(found) + 1)), found
    titled = set_title.sync("generated", client=client, body=TitleRequest(title="three"))
    assert titled.status.title == "three", titled

    refused = remove_session.sync("generated", client=client)
    assert isinstance(refused, Problem) and refused.code.value == "wrong-phase" and refused.hint, refused
    assert remove_session.sync_detailed("generated", client=client, force=True).status_code == 204
    gone = session.sync("generated", client=client)
    assert isinstance(gone, Problem) and gone.code.value == "no-such-session", gone
    print(f"{len(found)} events")


main(*sys.argv[1:])
