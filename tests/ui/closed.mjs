/**
 * A page is closed while the session goes on, and opened again. A closed page has no clock. So what counts is how much
 * the session writes meanwhile, and not how long it takes.
 */
import { placeOf } from "./daemon.mjs";
import { fromBeginning, sameAsJournal } from "./transcript.mjs";

/** Turns, and tool calls of a turn. */
const TURNS = 5;
const CALLS = 30;

/** Returns the prompt of a turn with tool calls, each after a text. */
function calls(turn) {
  return Array.from({ length: CALLS }, (_, index) => {
    const call = { toolCallId: `c${turn}-${index}`, title: `call ${index} of turn ${turn}`, kind: "read" };
    return `say text ${index}.\nupdate ${JSON.stringify({ sessionUpdate: "tool_call", status: "completed", ...call })}`;
  }).join("\n");
}

export default async function ({ check, daemon, open, sees }) {
  const id = await daemon.create();
  const before = await open(placeOf(id));
  await daemon.prompt(id, "say seen before");
  await before.locator(".item.text", { hasText: "seen before" }).waitFor();
  await daemon.settled(id);
  await sameAsJournal(before, daemon, id);
  const list = await open();
  await list.waitForSelector(`[data-session="${id}"]`);
  // What a page shows counts as read a moment after it was drawn.
  await sees("nothing is unread", () => list.locator(".unread").count(), 0);
  await before.close();

  for (let turn = 0; turn < TURNS; turn += 1) await daemon.prompt(id, calls(turn));
  await daemon.settled(id);
  await daemon.prompt(id, "ask");
  await sees("the list shows what is new", () => list.locator(`[data-session="${id}"].unread`).count(), 1);

  // From the third page on, older records come only when the person is at the top already.
  let release;
  const released = new Promise((resolve) => (release = resolve));
  let pages = 0;
  const after = await open(placeOf(id), (fresh) =>
    fresh.route(
      (url) => url.searchParams.has("before"),
      async (route) => {
        pages += 1;
        if (pages > 2) await released;
        await route.continue();
      },
    ),
  );
  await after.locator(".question.open").waitFor();
  const scroller = after.locator(".scroller");
  const fromEnd = () => scroller.evaluate((part) => Math.round(part.scrollHeight - part.scrollTop - part.clientHeight));
  const fromTop = () => scroller.evaluate((part) => Math.round(part.scrollTop));
  await sees("the newest is in view", fromEnd, (distance) => distance < 2);
  await sees("a page that is late", () => pages, 3);
  await scroller.evaluate((part) => void part.scrollTo({ top: 0 }));
  await sees("the top", fromTop, 0);
  release();
  await sees("what came late is shown at the top", fromTop, (distance) => distance > 0);
  await fromBeginning(after);
  await sameAsJournal(after, daemon, id);
  check("where the unread part begins", await after.locator(".divider").count(), 1);
  check("no interruption of this page", await after.locator('[data-marker="gap"]').count(), 0);
}
