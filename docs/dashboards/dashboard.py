#!/usr/bin/env python3
"""Shows the sessions, questions and failures of an agentd, over restarts of the daemon: dashboard.py SOCKET"""
import contextlib, http.client, json, socket, sys, time

KINDS = "session.state,session.removed,permission.requested,permission.resolved,launch.failed,turn.ended"
sessions, questions, failures, cursor = {}, {}, [], None


class Unix(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)  # a heartbeat comes more often
        self.sock.connect(sys.argv[1])


def put(session):
    sessions[session["id"]] = session
    for permission in session.get("permissions", []):
        questions.setdefault((session["id"], permission), "asked before this dashboard began")


def apply(session, kind, data):
    if kind == "feed.state":
        sessions.clear(), questions.clear()
        for listed in data["sessions"]:
            put(listed)
    elif kind == "session.state":
        put(data)
    elif kind == "session.removed":
        sessions.pop(session, None)
    elif kind == "permission.requested":
        questions[session, data["request"]["id"]] = data["request"]["title"]
    elif kind == "permission.resolved":
        questions.pop((session, data["permission"]), None)
    elif kind == "launch.failed":
        failures.append((session, f'{data["reason"]}: {data["message"]}'))
    elif kind == "turn.ended" and data.get("synthetic"):
        failures.append((session, data["synthetic"]["detail"]))


def show(note):
    rows = [f"--- {len(sessions)} sessions, {len(questions)} questions, {len(failures)} failures; {note}"]
    rows += [f'{s["phase"]:12}{s.get("name") or "-":20}{s["id"]}  {s.get("message") or ""}' for s in sessions.values()]
    rows += [f"question    {session} {id}: {title}" for (session, id), title in questions.items()]
    rows += [f"failure     {session}: {text}" for session, text in failures[-10:]]
    clear = "\033[H\033[2J" if sys.stdout.isatty() else ""
    print(clear + "\n".join("".join(c if c.isprintable() else " " for c in row) for row in rows), flush=True)


while True:  # One connection at a time: first the list of all sessions, later the events after the last cursor.
    try:
        with contextlib.closing(Unix("agentd")) as connection:
            connection.request("GET", f"/v1/events?kind={KINDS}" + (f"&after={cursor}" if cursor else ""))
            for event in map(json.loads, connection.getresponse()):
                cursor = event["cursor"]  # a refusal has none
                apply(event.get("session"), event["kind"], event["data"])
                show(event["time"])
    except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
        show(f"no connection: {error!r}")
    time.sleep(1)
