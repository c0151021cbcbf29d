/**
 * What the person has seen of each session, kept in the browser.
 *
 * Times are those of records, so clocks of two machines do not matter. Before the first look everything counts as
 * seen: a page that is opened for the first time has nothing unread.
 */

/** The last look at a session: the last record that was on the screen. */
export interface Look {
  seq: number;
  time: string;
}

const at = (base: string, id: string): string => `look ${base} ${id}`;
const from = (base: string): string => `since ${base}`;

/** Returns the last look at a session. */
export function look(base: string, id: string): Look | undefined {
  const [seq, time] = localStorage.getItem(at(base, id))?.split(" ") ?? [];
  return seq === undefined || time === undefined ? undefined : { seq: Number(seq), time };
}

/** Notes a look at a session. An earlier one than the last changes nothing. */
export function looked(base: string, id: string, { seq, time }: Look): void {
  const before = look(base, id);
  if (before === undefined || before.seq < seq) localStorage.setItem(at(base, id), `${seq} ${time}`);
}

/** Calls `changed` with each session that another window of the page looked at. Returns a function that ends this. */
export function lookedElsewhere(base: string, changed: (id: string) => void): () => void {
  const prefix = at(base, "");
  const listen = ({ key, newValue }: StorageEvent) => {
    if (newValue !== null && key?.startsWith(prefix)) changed(key.slice(prefix.length));
  };
  addEventListener("storage", listen);
  return () => removeEventListener("storage", listen);
}

/** Forgets a session that was removed. */
export function forget(base: string, id: string): void {
  localStorage.removeItem(at(base, id));
}

/** Returns the time before which all is seen: that of the first opening of this page. `now` is the daemon's time. */
export function since(base: string, now: string): string {
  const known = localStorage.getItem(from(base));
  if (known !== null) return known;
  localStorage.setItem(from(base), now);
  return now;
}

/** Returns whether something that happened at `time` was not seen. */
export function isNew(base: string, id: string, time: string, begun: string): boolean {
  return Date.parse(time) > Date.parse(look(base, id)?.time ?? begun);
}
