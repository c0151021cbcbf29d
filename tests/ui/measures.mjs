/** Measurements in a page, and waits for values that come to rest. */
import { check, sees } from "./checks.mjs";

export const MEGABYTE = 1 << 20;
/** Milliseconds for which a value that has come to rest does not change. */
const REST = 1_000;

/** Fails unless a measured value is as it should be. Every measurement is also in the messages of the scenario. */
export function measured(what, holds, seen) {
  console.error(`${what}: ${seen}`);
  check(`${what}: ${seen}`, holds, true);
}

/** Waits until a value has not changed for a second, and returns it. */
export function atRest(what, look) {
  let last;
  let since = 0;
  return sees(what, look, (seen) => {
    const now = JSON.stringify(seen);
    if (now !== last) [last, since] = [now, Date.now()];
    return Date.now() - since >= REST;
  });
}

/** Returns the middle one of an odd number of values. */
export const median = (values) => values.toSorted((one, other) => one - other)[values.length >> 1];

/** Returns a line of a prompt for an update of the agent, and one for a tool call that has ended. */
export const update = (value) => `update ${JSON.stringify(value)}`;
export const tool = (title) =>
  update({ sessionUpdate: "tool_call", toolCallId: title, title, kind: "read", status: "completed" });

/** Waits until the conversation is followed and shows something. */
export async function follows(page) {
  await page.waitForSelector('.talk [data-state="live"]');
  await page.waitForSelector(".scroller > .item");
}

/** Waits until the last text of the conversation ends with these words. */
export const endsWith = (page, words) =>
  page.waitForFunction((end) => [...document.querySelectorAll(".item.text")].at(-1)?.textContent.endsWith(end), words);

/** Returns the distance of the view of the conversation from its end. */
export const fromEnd = (page) =>
  page.evaluate(() => {
    const { scrollHeight, scrollTop, clientHeight } = document.querySelector(".scroller");
    return scrollHeight - scrollTop - clientHeight;
  });
