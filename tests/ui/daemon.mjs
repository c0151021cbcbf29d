/** Requests to the daemon's own socket, past the page and its server. */
import { check, sees } from "./checks.mjs";

/** Returns the calls of a scenario. `spec` is the specification of a session with the scripted agent. */
export function daemonOf(ask, spec) {
  const call = async (method, path, body) => {
    const { status, text } = await ask("call", { method, path, body: body === undefined ? "" : JSON.stringify(body) });
    return { status, text };
  };
  const document = async (method, path, body) => {
    const { status, text } = await call(method, path, body);
    check(`${method} ${path} succeeds: ${status < 300 ? "" : text}`, status < 300, true);
    return text === "" ? undefined : JSON.parse(text);
  };
  const view = (id) => document("GET", `/v1/sessions/${id}`);
  return {
    call,
    document,
    view,
    /** Creates a session, and returns its id when it is ready for a prompt. */
    create: async (more = {}) => {
      const { id } = await document("POST", "/v1/sessions", { ...spec, ...more });
      await sees("the session is ready", async () => (await view(id)).status.phase, "idle");
      return id;
    },
    /** Sends a prompt without waiting for the turn. */
    prompt: (id, text) => document("POST", `/v1/sessions/${id}/prompt`, { prompt: text }),
    /** Waits until the session has done everything that was asked for. */
    settled: (id) =>
      sees(`the session ${id} is idle`, async () => {
        const { status } = await view(id);
        return status.phase === "idle" && status.queue.length === 0;
      }),
    /** Returns all records of the session's journal. */
    journal: async (id) => {
      const { status, text } = await call("GET", `/v1/sessions/${id}/events?follow=false`);
      check("the journal is answered", status, 200);
      return text
        .split("\n")
        .filter(Boolean)
        .map((line) => JSON.parse(line));
    },
  };
}

/** Returns the place of a session's conversation in the page. */
export const placeOf = (id) => `#/session/this/${id}`;
