/** Large sessions and fast ones: the first paint, the bytes over the wire, and the memory of the page. */
import { placeOf } from "./daemon.mjs";
import { atRest, endsWith, follows, measured, median, MEGABYTE, tool } from "./measures.mjs";

/** Openings of each session. The first of each fills the caches of the browser and of the daemon. */
const OPENINGS = 8;
/** Largest time to the first paint, as a multiple of that of an empty session. */
const SLOWER = 1.5;
/** Events that are sent each second. They are more than the required 1,000, so that the page may be somewhat late. */
const RATE = 1_300;
const SECONDS = 30;
/** Most megabytes by which the memory grows: about as README.md of the page says, and in the second half. */
const KEPT = 20;
const GROWTH = 4;
/** Pieces of one long text, and the largest time until it is shown, as a multiple of the time until it is written. */
const PIECES = 30_000;
const LATER = 3;
/** Most nodes in the document. A conversation of 480 items has about 4,000. */
const NODES = 10_000;

export default async function (tools) {
  const { daemon, open, pages } = tools;
  await open();
  const sessions = { empty: await daemon.create(), heavy: await daemon.create(), long: await daemon.create() };
  // Records of 100 KB are a hard case: the first page, which has eight, is most of a megabyte.
  await daemon.prompt(sessions.heavy, "flood 340 100000\nsay the end");
  await daemon.prompt(sessions.long, "flood 100000 300\nsay the end");
  for (const id of Object.values(sessions)) await daemon.settled(id);
  const last = (await daemon.view(sessions.long)).status.last_seq;
  measured("records of the long session", last > 100_000, last);
  await openings(pages, sessions);
  await stream(tools, await daemon.create());
  await text(tools, await daemon.create());
}

/** Opens sessions by turns, each in a new tab, and compares times and bytes. */
async function openings(pages, sessions) {
  const times = { empty: [], heavy: [], long: [] };
  for (let round = 0; round < OPENINGS; round++) {
    for (const [name, id] of Object.entries(sessions)) {
      const end = name === "empty" ? ".marker" : "[data-turn-ended]";
      const { time, length } = await opening(pages, placeOf(id), end, round === 0);
      if (round > 0) times[name].push(time);
      measured(`bytes for the ${name} session`, length <= MEGABYTE, length);
    }
  }
  const empty = median(times.empty);
  for (const name of ["heavy", "long"]) {
    const time = median(times[name]);
    const seen = `${time.toFixed(0)} ms, and the empty one ${empty.toFixed(0)} ms`;
    measured(`first paint of the ${name} session`, time <= SLOWER * empty, seen);
  }
}

/**
 * Opens a place in a new tab: the time from the navigation to the first frame with the end of the conversation, and
 * all bytes. The last item is there and in view, and `end` selects it. The first opening loads the whole page.
 */
async function opening({ address, context }, place, end, isFirst) {
  const tab = await context.newPage();
  const client = await context.newCDPSession(tab);
  await client.send("Network.enable");
  if (isFirst) await client.send("Network.clearBrowserCache");
  const lengths = {};
  client.on("Network.dataReceived", ({ requestId, dataLength }) => {
    lengths[requestId] = (lengths[requestId] ?? 0) + dataLength;
  });
  // Only the end of an answer has its length as it was sent: compressed, or nothing from the cache.
  client.on("Network.loadingFinished", ({ requestId, encodedDataLength }) => (lengths[requestId] = encodedDataLength));
  await tab.addInitScript((end) => {
    const look = () => {
      const item = [...document.querySelectorAll(".scroller > .item")].at(-1);
      const bottom = item?.matches(end) ? item.getBoundingClientRect().bottom : Infinity;
      if (bottom > innerHeight) return requestAnimationFrame(look);
      // The next frame begins when this one is drawn.
      requestAnimationFrame(() => (window.painted = performance.now()));
    };
    look();
  }, end);
  await tab.goto(`${address}/${place}`);
  const time = await (await tab.waitForFunction(() => window.painted)).jsonValue();
  await follows(tab);
  const sum = () => Object.values(lengths).reduce((all, length) => all + length, 0);
  const length = await atRest("the bytes of an opening", sum);
  await tab.close();
  return { time, length };
}

/** Returns a prompt for a number of events: tool calls, and texts that grow between them. */
const events = (number, round) =>
  [
    ...Array.from({ length: number / 10 }, (_, at) => `${tool(`call ${round}.${at}`)}\nflood 9 500`),
    `say the end of round ${round}`,
  ].join("\n");

/** Streams events into an open page, and watches its memory. */
async function stream({ daemon, open, pages }, id) {
  const tab = await open(placeOf(id));
  await follows(tab);
  const client = await pages.context.newCDPSession(tab);
  await client.send("HeapProfiler.enable");
  await client.send("Network.enable");
  let length = 0;
  client.on("Network.dataReceived", (data) => (length += data.dataLength));
  const memory = async () => {
    await client.send("HeapProfiler.collectGarbage");
    const { nodes } = await client.send("Memory.getDOMCounters");
    const { usedSize } = await client.send("Runtime.getHeapUsage");
    return { heap: usedSize / MEGABYTE, nodes };
  };
  const before = (await daemon.view(id)).status.last_seq;
  const first = await memory();
  const samples = [];
  const begun = Date.now();
  for (let round = 0; round < SECONDS; round++) {
    await daemon.prompt(id, events(RATE, round));
    await daemon.settled(id);
    if (round % 3 === 2) samples.push(await memory());
    // This is the pace of the events. What took time above is a part of it.
    await new Promise((next) => setTimeout(next, begun + (round + 1) * 1_000 - Date.now()));
  }
  await endsWith(tab, `the end of round ${SECONDS - 1}`);
  const seconds = (Date.now() - begun) / 1_000;
  const count = (await daemon.view(id)).status.last_seq - before;
  samples.push(await memory());
  const most = (part) => Math.max(...part.map(({ heap }) => heap));
  const half = samples.length >> 1;
  const [early, late] = [most(samples.slice(0, half)), most(samples.slice(half))];
  const heaps = [first, ...samples].map(({ heap }) => heap.toFixed(1)).join(", ");
  measured("events in a second that the page shows", count / seconds >= 1_000, count / seconds);
  measured("bytes of the events, more than the page keeps", length > 1.25 * KEPT * MEGABYTE, length);
  measured("megabytes of memory", Math.max(early, late) - first.heap < KEPT, heaps);
  measured("megabytes of memory in the second half", late - early < GROWTH, heaps);
  const nodes = samples.map((sample) => sample.nodes);
  measured("nodes of the document", Math.max(...nodes) < NODES, nodes);
}

/** Streams one text in very many pieces. */
async function text({ daemon, open }, id) {
  const tab = await open(placeOf(id));
  await follows(tab);
  const begun = Date.now();
  await daemon.prompt(id, `flood ${PIECES} 100`);
  await daemon.settled(id);
  const written = Date.now() - begun;
  await tab.waitForSelector(".item[data-turn-ended]");
  const shown = Date.now() - begun;
  measured("time until a long text is shown", shown <= LATER * written, `${shown} ms, and written in ${written} ms`);
}
