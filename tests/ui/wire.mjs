/** Questions to the test program: JSON lines on the standard output, and their answers on the standard input. */
import { createInterface } from "node:readline";

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
let last = Promise.resolve();

/** Asks for something, and returns the answer. One question is under way at a time. */
export function ask(what, details = {}) {
  const answer = last.then(async () => {
    process.stdout.write(`${JSON.stringify({ ...details, ask: what })}\n`);
    const { value, done } = await lines.next();
    if (done) throw new Error(`the test program has ended, and ${what} has no answer`);
    return JSON.parse(value);
  });
  last = answer.catch(() => undefined);
  return answer;
}
