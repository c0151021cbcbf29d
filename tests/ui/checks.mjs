/** Checks of a scenario, and waits for conditions. */
import { isDeepStrictEqual } from "node:util";

/** Milliseconds of one wait: far more than a page needs on a busy machine. */
export const LIMIT = 90_000;
/** Milliseconds between two looks of a wait. */
const PAUSE = 50;

const written = (value) => {
  const text = JSON.stringify(value, null, 1) ?? String(value);
  return text.length > 6_000 ? `${text.slice(0, 3_000)} … ${text.slice(-3_000)}` : text;
};

/** Fails unless both values are equal. */
export function check(what, seen, expected) {
  if (isDeepStrictEqual(seen, expected)) return;
  throw new Error(`${what}\nexpected: ${written(expected)}\nseen: ${written(seen)}`);
}

/** Looks again and again until `wanted` holds: a value to which what is seen is equal, or a condition. Returns it. */
export async function sees(what, look, wanted = Boolean) {
  const holds = typeof wanted === "function" ? wanted : (seen) => isDeepStrictEqual(seen, wanted);
  const end = Date.now() + LIMIT;
  for (;;) {
    const seen = await look();
    if (holds(seen)) return seen;
    if (Date.now() > end) {
      throw new Error(`${what}: not within ${LIMIT / 1000} s\nexpected: ${written(wanted)}\nseen: ${written(seen)}`);
    }
    await new Promise((resume) => setTimeout(resume, PAUSE));
  }
}
