/** The whole document of a session, read again when its compact state changes. */
import { useEffect, useState } from "preact/hooks";

import { call, session, type SessionView } from "./api";
import type { Host } from "./login";

interface Read {
  document: SessionView | undefined;
  /** Why the last attempt failed. */
  trouble: unknown;
}

/** Returns a session's document. An answer that is older than the present one is ignored. */
export function useView(host: Host, id: string): Read {
  const [read, setRead] = useState<Read>({ document: undefined, trouble: undefined });
  const brief = host.sessions.all.value.get(id);
  const changes = host.sessions.changes(id).value;
  useEffect(() => {
    const abort = new AbortController();
    const take = (document: SessionView) =>
      setRead((before) => {
        const isOlder = before.document !== undefined && before.document.status.last_seq > document.status.last_seq;
        return { document: isOlder ? before.document : document, trouble: undefined };
      });
    const fail = (error: unknown) => {
      if (!abort.signal.aborted) setRead((before) => ({ ...before, trouble: error }));
    };
    call<SessionView>(host.base, "get", session(id), undefined, { signal: abort.signal }).then(take, fail);
    return () => abort.abort();
  }, [host, id, brief, changes]);
  return read;
}
