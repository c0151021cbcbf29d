/** The state of a connection, beside what depends on it. */
import { signal, type Signal } from "@preact/signals";
import type { VNode } from "preact";

import type { Connection } from "../core/stream";
import { texts } from "../texts";

/** Seconds of silence after which the time of the last sign of life is shown. Heartbeats come each 15 s. */
const QUIET = 20;

/** The present time, advanced from time to time for texts like "20 s ago". */
const now = signal(Date.now());
if (typeof document !== "undefined") setInterval(() => (now.value = Date.now()), 5_000);

interface Props {
  of: Signal<Connection>;
  /** Time of the last sign of life. */
  heard: Signal<number>;
  retry: () => void;
}

/** A line with the state in words. A quiet connection also shows how long ago its last heartbeat came. */
export function ConnectionState({ of, heard, retry }: Props): VNode {
  const connection = of.value;
  const silent = Math.round((now.value - heard.value) / 1000);
  return (
    <p class={`connection ${connection.state}`} data-state={connection.state}>
      <span class="lamp" aria-hidden="true" />
      <span role="status">
        <bdi>{wordsOf(connection)}</bdi>
      </span>
      {connection.state === "live" && heard.value > 0 && silent >= QUIET && (
        <small>{texts.connection.lastSign(silent)}</small>
      )}
      {(connection.state === "waiting" || connection.state === "refused") && (
        <button type="button" onClick={retry}>
          {texts.connection.retry}
        </button>
      )}
    </p>
  );
}

function wordsOf(connection: Connection): string {
  switch (connection.state) {
    case "waiting":
      return texts.connection.waiting(connection.why);
    case "refused":
      return texts.connection.refused(connection.why);
    default:
      return texts.connection[connection.state];
  }
}
