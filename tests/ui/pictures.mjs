/**
 * Four views at three widths, light and dark, as in the pictures and boxes of `reference/`. `AGENTD_TEST_REWRITE`
 * writes both again. Somebody must look at new pictures.
 *
 * Fonts differ between machines. `boxes.json` has the widths of two sample texts. With the same widths, boxes and
 * pictures are compared. With others, only the boxes are, with more tolerance.
 */
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

import { check } from "./checks.mjs";
import { measured } from "./measures.mjs";
import { difference, small } from "./png.mjs";
import { conversation, panels, scenes, show } from "./scenes.mjs";

const SIZES = [
  { width: 360, height: 740 },
  { width: 1280, height: 800 },
  { width: 1920, height: 1080 },
];
/**
 * Share of pixels that may differ. Without a change, at most 0.13 % differed: the edges of letters, whose colours the
 * palette of a reference leaves out. A card of the list that moves by a line, or with another colour, is more.
 */
const SHARE = 0.003;
/** Pixels by which a box may differ with the same fonts, and with other ones. */
const SAME_FONTS = 2;
const OTHER_FONTS = 60;

/** Main elements of each view. */
const ELEMENTS = {
  list: [".top", ".filter", ".host", ".group.needs", ".group.working", ".group.waiting", ".group.ended", ".session"],
  conversation: [".lists", ".head", ".scroller", ".question", ".answers", ".input", ".input textarea", ".context"],
  create: [".creation", ".creation [role=combobox]", ".creation textarea", ".creation .actions"],
  why: [".lists", ".head", "[data-panel=state]", "[data-panel=prerequisites]", "[data-panel=doctor]"],
};

export default async function (tools) {
  const { open, pages, settings } = tools;
  const first = await open();
  const ids = await scenes(tools);
  // Two sessions without any news would be in an order that differs.
  await tools.daemon.document("DELETE", `/v1/sessions/${ids.form}?force`);
  const views = {
    list: (page) => page.locator(".session", { hasText: "Nested quotes in the parser" }).waitFor(),
    conversation: async (page) => {
      await conversation(page, ids.asking, ".question.open");
      for (const part of [".context", ".input .options"]) await page.waitForSelector(part);
    },
    create: (page) => filledForm(page, settings),
    why: (page) => panels(page, ids.waiting, ["state", "prerequisites"]),
  };
  const state = await pages.context.storageState();
  const blank = await (await pages.profile()).newPage();
  const reference = new Reference(settings, await fonts(first));
  for (const colorScheme of ["light", "dark"]) {
    for (const viewport of SIZES) {
      const context = await pages.profile({ storageState: state, colorScheme, viewport });
      for (const [view, visit] of Object.entries(views)) {
        const page = await context.newPage();
        await page.goto(`${settings.address}/#/`);
        await visit(page);
        const wide = await page.evaluate(() => document.documentElement.scrollWidth);
        check(`nothing is wider than the window: ${view}`, wide <= viewport.width, true);
        await reference.compare(page, blank, `${view}-${viewport.width}`, colorScheme, ELEMENTS[view]);
        await page.close();
      }
      await context.close();
      // The daemon still has all sessions.
      await tools.daemon.view(ids.asking);
    }
  }
  reference.end();
  await motion(tools, state);
}

/** Fills the form for a new session. */
async function filledForm(page, { spec }) {
  await show(page, "#/create");
  const directory = page.getByRole("combobox", { name: "Directory" });
  await directory.fill(spec.directory);
  await page.getByRole("textbox", { name: "First prompt" }).fill("Write a test for nested quotes.");
  await page.getByRole("combobox", { name: "Agent" }).selectOption("scripted");
  await page.evaluate(() => document.activeElement.blur());
}

/** Replaces what differs in each run: paths, times and durations. Returns the number of texts that it replaced. */
const steady = (page, root) =>
  page.evaluate((root) => {
    // No timer draws texts again, such as the age of a check.
    const last = setTimeout(() => undefined);
    for (let timer = 1; timer <= last; timer++) clearTimeout(timer);
    let count = 0;
    const steadied = (text) =>
      text
        .replaceAll(root, "/home/kim")
        .replace(/\b\d{4}-\d\d-\d\dT[\d:.]+Z/g, "2030-01-01T12:00:00Z")
        .replace(/\b\d{1,2}:\d\d:\d\d\b/g, "12:00:00")
        .replace(/\b\d+(\.\d+)? (s|ms|min)\b/g, "1 s")
        .replace(/\bprocess \d+\b/g, "process 1");
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node !== null; node = walker.nextNode()) {
      if (steadied(node.data) === node.data) continue;
      node.data = steadied(node.data);
      count += 1;
    }
    for (const field of document.querySelectorAll("input[type=text]")) {
      if (steadied(field.value) === field.value) continue;
      field.value = steadied(field.value);
      count += 1;
    }
    // Shorter texts can leave the view elsewhere than at the end.
    const scroller = document.querySelector(".scroller");
    if (scroller !== null) scroller.scrollTop = scroller.scrollHeight;
    return count;
  }, root);

/** Returns the widths of sample texts in the fonts of the page. */
const fonts = (page) =>
  page.evaluate(() => {
    const context = document.createElement("canvas").getContext("2d");
    const families = [document.documentElement, document.createElement("code")].map((element) => {
      document.body.append(element === document.documentElement ? "" : element);
      return getComputedStyle(element).fontFamily;
    });
    document.body.lastElementChild.remove();
    return families.map((family) => {
      context.font = `100px ${family}`;
      return Math.round(context.measureText("Every session waits for its world 0123456789").width);
    });
  });

/** The pictures and boxes of the repository. */
class Reference {
  constructor({ references, rewrite, directory, root }, fonts) {
    this.root = root;
    this.directory = references;
    this.rewrite = rewrite;
    this.seen = directory;
    this.file = join(references, "boxes.json");
    this.known = rewrite ? { fonts } : JSON.parse(readFileSync(this.file, "utf8"));
    this.hasFonts = String(this.known.fonts) === String(fonts);
    if (rewrite) mkdirSync(references, { recursive: true });
  }

  async compare(page, blank, name, scheme, elements) {
    let boxes;
    let picture;
    // An answer can draw a part again meanwhile, with its own texts.
    do {
      await steady(page, this.root);
      boxes = Object.fromEntries(await Promise.all(elements.map(async (one) => [one, await box(page, one)])));
      picture = await page.screenshot({ animations: "disabled" });
    } while ((await steady(page, this.root)) > 0);
    const file = join(this.directory, `${name}-${scheme}.png`);
    if (this.rewrite) {
      this.known[name] = boxes;
      writeFileSync(file, await small(blank, picture));
      return;
    }
    const most = this.hasFonts ? SAME_FONTS : OTHER_FONTS;
    for (const [element, sides] of Object.entries(boxes)) {
      const known = this.known[name][element];
      const isSame = known === null ? sides === null : sides?.every((side, at) => Math.abs(side - known[at]) <= most);
      measured(`box of ${element} in ${name}, ${scheme}`, isSame, `${sides}, in the reference ${known}`);
    }
    if (!this.hasFonts) return;
    writeFileSync(join(this.seen, `${name}-${scheme}.png`), picture);
    const share = existsSync(file) ? await difference(blank, picture, readFileSync(file)) : 1;
    measured(`share of different pixels in ${name}, ${scheme}`, share <= SHARE, share);
  }

  end() {
    if (this.rewrite) writeFileSync(this.file, `${JSON.stringify(this.known, null, 1)}\n`);
    else console.error(this.hasFonts ? "with the fonts of the pictures" : "with other fonts than the pictures");
  }
}

/** Returns the place and the size of an element, or null if it is not shown. */
async function box(page, selector) {
  const element = page.locator(selector).first();
  const sides = (await element.count()) === 0 ? null : await element.boundingBox();
  return sides && [sides.x, sides.y, sides.width, sides.height].map(Math.round);
}

/** Nothing moves for a person who wants that. */
async function motion({ pages, settings }, state) {
  for (const [reducedMotion, moves] of [["no-preference", true], ["reduce", false]]) {
    const context = await pages.profile({ storageState: state, reducedMotion });
    const page = await context.newPage();
    // The answer never comes, so the page goes on to connect.
    await page.route("**/v1/events*", () => undefined);
    await page.goto(`${settings.address}/#/`);
    await page.waitForSelector('[data-state="connecting"]');
    const moving = await page.evaluate(() => document.getAnimations().length > 0);
    check(`something moves with ${reducedMotion}`, moving, moves);
    const smooth = await page.evaluate(() =>
      [...document.querySelectorAll("*")].filter((element) => {
        const { scrollBehavior, transitionDuration } = getComputedStyle(element);
        return scrollBehavior === "smooth" || transitionDuration !== "0s";
      }).length,
    );
    if (reducedMotion === "reduce") check("elements with transitions", smooth, 0);
    await context.close();
  }
}
