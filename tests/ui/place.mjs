/** The place of somebody who reads further up: nothing that comes or goes moves what is under the eye. */
import { sees } from "./checks.mjs";
import { placeOf } from "./daemon.mjs";
import { atRest, endsWith, follows, fromEnd, measured, tool } from "./measures.mjs";

/** Pages of older records that are read. */
const PAGES = 12;
export default async function (tools) {
  const { ask, daemon, open } = tools;
  const id = await daemon.create();
  const turn = async (lines) => {
    await daemon.prompt(id, lines);
    await daemon.settled(id);
  };
  for (let part = 0; part < 4; part++) await turn(mixed(1_000, `part ${part},`));
  const page = await open(placeOf(id));
  await page.setViewportSize({ width: 1280, height: 800 });
  await follows(page);
  await atRest("the beginning", () => page.locator(".scroller > .item").count());
  measured("distance from the end after opening", (await fromEnd(page)) < 2, await fromEnd(page));

  // The list of waiting prompts grows and shrinks below the conversation. The end stays in view.
  await daemon.prompt(id, "count 60 30");
  for (let number = 0; number < 8; number++) await daemon.prompt(id, `say waited ${number}`);
  await daemon.settled(id);
  await endsWith(page, "waited 7");
  await atRest("the end of a queue", () => fromEnd(page));
  measured("distance from the end after a queue", (await fromEnd(page)) < 2, await fromEnd(page));

  let before = await scrolledUp(page);
  const stays = async (when) => {
    const now = await atRest(`the place ${when}`, () => eye(page));
    measured(`the place ${when}`, String(now) === String(before), `${now}, before ${before}`);
  };
  await turn(mixed(600, "streamed"));
  await stays("while records stream");
  await page.locator(".newest").waitFor();
  await ask("kill daemon");
  await page.waitForSelector('.talk [data-state="waiting"]');
  await stays("while the daemon is away");
  await ask("start daemon");
  await follows(page);
  await turn("say after the daemon");
  await stays("after a reconnection");

  await older(page);
  await page.click(".newest");
  await follows(page);
  await endsWith(page, "after the daemon");
  before = await scrolledUp(page);
  // The page keeps fewer records, so it leaves the end until somebody returns.
  for (let part = 0; part < 5; part++) await turn(mixed(1_000, `beyond ${part},`));
  await turn("say the very end");
  await page.waitForSelector('.talk [data-state="paused"]');
  await stays("while more streams than the page keeps");
  await page.click(".newest");
  await endsWith(page, "the very end");
  await atRest("the end", () => fromEnd(page));
  measured("distance from the end after the return", (await fromEnd(page)) < 2, await fromEnd(page));
}

/** Returns a prompt for texts and tool calls of different heights. */
const mixed = (number, name) =>
  Array.from({ length: number }, (_, at) =>
    at % 2 ? tool(`${name} ${at}`) : `say ${name} ${at} ${"and some words ".repeat(at % 40)}`,
  ).join("\n");

/** Returns the first item in view, and its distance from the top of the view. */
const eye = (page) =>
  page.evaluate(() => {
    const scroller = document.querySelector(".scroller");
    const { top } = scroller.getBoundingClientRect();
    const item = [...scroller.children].find((one) => one.dataset.seq && one.getBoundingClientRect().bottom > top);
    return [Number(item.dataset.seq), Math.round(item.getBoundingClientRect().top - top)];
  });

/** Scrolls up with the wheel, and returns the place. */
async function scrolledUp(page) {
  await page.hover(".scroller");
  await page.mouse.wheel(0, -1_500);
  await page.waitForSelector(".newest");
  return atRest("the place of the reader", () => eye(page));
}

/** Reads older pages, by turns from somewhat below the top and from the very top. */
async function older(page) {
  const first = () => page.evaluate(() => Number(document.querySelector(".scroller > [data-seq]").dataset.seq));
  let seq = await first();
  for (let number = 0; number < PAGES; number++) {
    const place = number % 2 ? 200 : 0;
    // In one step, because the page reads older records as soon as it notices the scrolling.
    const [item, before] = await page.evaluate((place) => {
      const scroller = document.querySelector(".scroller");
      scroller.scrollTop = place;
      const { top } = scroller.getBoundingClientRect();
      const item = [...scroller.children].find((one) => one.dataset.seq && one.getBoundingClientRect().bottom > top);
      return [item.dataset.seq, item.getBoundingClientRect().top];
    }, place);
    await sees("older records", first, (now) => now < seq);
    seq = await atRest("the first record", first);
    const after = await page.evaluate(
      (item) => document.querySelector(`.scroller > [data-seq="${item}"]`)?.getBoundingClientRect().top,
      item,
    );
    const moved = Math.abs(after - before);
    measured(`pixels by which record ${item} moved, read from ${place}`, moved <= 1, moved);
  }
}
