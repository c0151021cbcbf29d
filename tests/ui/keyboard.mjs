/** Every function of the page with the keyboard alone. The mouse is never used. */
import { check, sees } from "./checks.mjs";
import { placeOf } from "./daemon.mjs";
import { fromEnd } from "./measures.mjs";
import { ask, conversation, panels, scenes, show } from "./scenes.mjs";

/** Most presses of Tab on the way to an element. */
const MOST = 400;
const FOCUSABLE = "a[href], button:enabled, input:enabled, select:enabled, textarea:enabled, summary, [tabindex='0']";

export default async function (tools) {
  const { daemon, open, origins, pages, settings } = tools;
  // The applet's server is not there, and a frame that it shows beside is empty.
  origins.push("http://localhost:8000", "http://127.0.0.1:8000");
  const ids = await scenes(tools);
  const page = await open();
  await pages.context.grantPermissions(["notifications"], { origin: settings.address });
  await page.waitForSelector(`[data-session="${ids.asking}"]`);
  await list(page, ids);
  await create(page, settings);
  await message(page, await daemon.create({ name: "typed" }));
  await questions(page, ids);
  await reading(page, ids);
  await why(page, ids);
  await life(page, ids);
  await sweeps(page, ids);
  await signedOut(page, pages);
}

/** Returns whether the focus is on such an element. */
const has = (page, selector) => page.evaluate((selector) => document.activeElement.matches(selector), selector);

/** Presses Tab until the focus is on such an element. */
async function tabTo(page, selector) {
  for (let presses = 0; presses < MOST; presses++) {
    if (await has(page, selector)) return;
    await page.keyboard.press("Tab");
  }
  throw new Error(`Tab does not reach ${selector}`);
}

async function enter(page, selector) {
  await tabTo(page, selector);
  await page.keyboard.press("Enter");
}

/** Presses a key of the page, which no field gets. */
async function key(page, name) {
  await page.evaluate(() => document.activeElement.blur());
  await page.keyboard.press(name);
}

const at = (page, place) => sees(`the place ${place}`, () => page.evaluate(() => location.hash), place);

async function list(page, ids) {
  await key(page, "?");
  await page.waitForSelector("dialog.keylist[open]");
  const keys = await page.locator("dialog.keylist dt").allTextContents();
  const known = ["?", "j, k", "n", "/", "i", "Enter", "1 to 9", "x", "g, G", "w", "Escape"];
  check("the list of keys has what this scenario presses", keys, known);
  await page.keyboard.press("Escape");
  await page.waitForSelector("dialog.keylist[open]", { state: "hidden" });

  await key(page, "/");
  await page.keyboard.type("slow-");
  await sees("the filtered sessions", () => page.locator("[data-session]").count(), 1);
  await page.keyboard.press("Control+a");
  await page.keyboard.press("Delete");
  await page.keyboard.press("Tab");
  await page.keyboard.type("team=docs");
  await sees("the sessions with a label", () => page.locator("[data-session]").count(), 1);
  await page.keyboard.press("Control+a");
  await page.keyboard.press("Delete");
  await page.keyboard.press("Escape");
  check("Escape leaves the field", await has(page, "input"), false);

  const order = await page.locator("[data-session]").evaluateAll((all) => all.map((one) => one.dataset.session));
  await key(page, "j");
  await at(page, placeOf(order[0]));
  await key(page, "j");
  await at(page, placeOf(order[1]));
  await key(page, "k");
  await at(page, placeOf(order[0]));
  await key(page, "Escape");
  await at(page, "#/");
  await enter(page, `[data-session="${ids.idle}"]`);
  await at(page, placeOf(ids.idle));
  await enter(page, ".top .notices");
  await sees("notifications", () => page.getAttribute(".notices", "aria-pressed"), "true");
}

async function create(page, { spec }) {
  await key(page, "n");
  await page.waitForSelector(".creation");
  await sees("the focus of the form", () => has(page, "[role=combobox]"));
  await page.keyboard.type(spec.directory.slice(0, -1));
  await page.waitForSelector("[role=listbox]");
  await page.keyboard.press("ArrowDown");
  await page.waitForSelector("[role=option][aria-selected=true]");
  await page.keyboard.press("Enter");
  check("the proposal is taken", await page.inputValue(":focus"), spec.directory);
  await tabTo(page, "[id$=-agent]");
  await page.keyboard.type("scripted");
  check("letters choose the agent", await page.inputValue(":focus"), "scripted");
  await tabTo(page, "textarea");
  await page.keyboard.type("say typed by keys");
  const chooser = page.waitForEvent("filechooser");
  await tabTo(page, "input[type=file]");
  await page.keyboard.press("Enter");
  await chooser;
  await enter(page, "summary");
  await tabTo(page, "[id$=-terms]");
  await page.keyboard.press("ArrowDown");
  check("a choice by an arrow", await page.inputValue(":focus"), "wait");
  await tabTo(page, "[id$=-name]");
  await page.keyboard.type("by-keys");
  await page.keyboard.press("Control+Enter");
  await page.locator(".item.text", { hasText: "typed by keys" }).waitFor();
  check("the name of the new session", (await page.textContent(".head h1")).trim(), "by-keys");
}

async function message(page, id) {
  await conversation(page, id, ".marker");
  await key(page, "i");
  await page.keyboard.type("say one");
  await page.keyboard.press("Shift+Enter");
  await page.keyboard.type("say  and two");
  await page.keyboard.press("Enter");
  await page.locator(".item.text", { hasText: "one and two" }).waitFor();
  await page.keyboard.type("hang");
  await page.keyboard.press("Enter");
  await page.getByRole("button", { name: "Cancel the turn" }).waitFor();
  await page.keyboard.type("say never");
  await page.keyboard.press("Enter");
  await page.waitForSelector(".queue li");
  await page.evaluate(() => document.activeElement.blur());
  await enter(page, ".queue button");
  await page.waitForSelector(".queue", { state: "detached" });
  await key(page, "x");
  await page.locator(".item.ended", { hasText: "Cancelled" }).first().waitFor();
  await tabTo(page, ".options label:first-of-type select");
  const before = await page.inputValue(":focus");
  await page.keyboard.press("ArrowDown");
  const model = await page.inputValue(":focus");
  check("an arrow chooses another model", model !== before, true);
  await page.locator(".facts", { hasText: model }).waitFor();
  const chooser = page.waitForEvent("filechooser");
  await tabTo(page, ".attach input");
  await page.keyboard.press("Enter");
  await chooser;
}

async function questions(page, ids) {
  await conversation(page, ids.asking, ".question.open");
  await sees("the key 1 answers", async () => {
    // A new question ignores keys for a moment.
    await key(page, "1");
    return page.locator(".question.answered").count();
  }, 1);
  await key(page, "i");
  await page.keyboard.type(ask);
  await page.keyboard.press("Enter");
  await page.waitForSelector(".question.open");
  await page.evaluate(() => document.activeElement.blur());
  await enter(page, ".question.open .answers button:last-child");
  await sees("answers", () => page.locator(".question.answered").count(), 2);
  await key(page, "i");
  await page.keyboard.type("/rev");
  await page.waitForSelector(".commands li");
  await page.evaluate(() => document.activeElement.blur());
  await enter(page, ".commands button");
  check("the command is in the input", await page.inputValue(":focus"), "/review ");
  await page.keyboard.press("Control+a");
  await page.keyboard.press("Delete");

  await conversation(page, ids.form, ".question.open");
  await tabTo(page, ".question .form input[type=number]");
  await page.keyboard.press("Control+a");
  await page.keyboard.type("8");
  await tabTo(page, ".question .form select");
  await page.keyboard.press("ArrowDown");
  await tabTo(page, ".question .form input[type=checkbox]");
  await page.keyboard.press("Space");
  check("the box is checked", await page.isChecked(":focus"), true);
  await enter(page, ".question .form button[type=submit]");
  await page.waitForSelector(".question.answered");
}

async function reading(page, ids) {
  await conversation(page, ids.asking, ".question.answered");
  for (const kind of ["thought", "tool"]) {
    await enter(page, `.item.${kind}:not([open]) > summary`);
    await page.waitForSelector(`.item.${kind}[open]`);
  }
  await tabTo(page, ".scroller");
  await key(page, "g");
  await sees("the beginning", () => page.evaluate(() => document.querySelector(".scroller").scrollTop), 0);
  await tabTo(page, ".scroller");
  await page.keyboard.press("PageDown");
  await sees("a page further", () => page.evaluate(() => document.querySelector(".scroller").scrollTop > 100));
  await key(page, "G");
  await sees("the end", () => fromEnd(page), (distance) => distance < 2);
  await enter(page, ".context .applet button");
  await page.waitForSelector(".applet-pane");
  await enter(page, ".applet-pane button");
  await page.waitForSelector(".applet-pane", { state: "detached" });
}

async function why(page, ids) {
  await key(page, "w");
  await at(page, `${placeOf(ids.asking)}/why`);
  for (const name of ["environment", "dropped"]) {
    await enter(page, `[data-panel=${name}] > summary`);
    await page.waitForSelector(`[data-panel=${name}][open] .body`);
  }
  await tabTo(page, "[data-panel=environment] input[type=search]");
  await page.keyboard.type("EDITOR");
  await sees("the variables found", () => page.locator("[data-variable]").count(), 1);
  await enter(page, '[data-dropped="FROM_PROFILE"] button');
  await page.waitForSelector('[data-dropped="FROM_PROFILE"] code, [data-dropped="FROM_PROFILE"] pre');
  await key(page, "w");
  await at(page, placeOf(ids.asking));
}

async function life(page, ids) {
  await conversation(page, ids.idle, ".text");
  const actions = (name) => page.locator(".head .actions").getByRole("button", { name, exact: true });
  const press = async (name) => {
    await actions(name).waitFor();
    await page.evaluate(() => document.activeElement.blur());
    for (let presses = 0; presses < MOST; presses++) {
      if (await actions(name).evaluate((element) => element === document.activeElement)) break;
      await page.keyboard.press("Tab");
    }
    await page.keyboard.press("Enter");
  };
  await press("Stop");
  await page.waitForSelector('.head [data-phase="stopped"]');
  await enter(page, ".head .menu > summary");
  await press("With a new conversation");
  await page.waitForSelector('.head [data-phase="idle"]');
  await press("Remove");
  await page.waitForSelector(".head dialog[open]");
  await page.keyboard.press("Escape");
  await page.waitForSelector(".head dialog[open]", { state: "hidden" });
  await press("Remove");
  await enter(page, ".head dialog[open] .danger");
  await at(page, "#/");
  await page.waitForSelector(`[data-session="${ids.idle}"]`, { state: "detached" });
}

/** Tab reaches everything in each view, and shows where it is. */
async function sweeps(page, ids) {
  await sweep(page, "list");
  await conversation(page, ids.asking, ".question.answered");
  await sweep(page, "conversation");
  await conversation(page, ids.working, ".text");
  await sweep(page, "working session");
  await conversation(page, ids.stopped, ".text");
  await sweep(page, "stopped session");
  await panels(page, ids.waiting, ["state", "prerequisites", "differences", "snapshot", "plugins", "audit", "doctor"]);
  await sweep(page, "why panels");
  await show(page, "#/create");
  await page.waitForSelector(".creation");
  await sweep(page, "create form");
}

async function sweep(page, view) {
  await page.evaluate((focusable) => {
    document.activeElement.blur();
    const isShown = (element) => element.checkVisibility({ visibilityProperty: true });
    window.left = new Set([...document.querySelectorAll(focusable)].filter(isShown));
    window.unseen = [];
  }, FOCUSABLE);
  let left;
  for (let presses = 0; presses < MOST && left !== 0; presses++) {
    await page.keyboard.press("Tab");
    left = await page.evaluate(() => {
      const element = document.activeElement;
      // The label of the field for files stands for it.
      const shown = element.closest("label.attach")?.firstElementChild ?? element;
      const { outlineStyle, outlineWidth } = getComputedStyle(shown);
      const isSeen = outlineStyle !== "none" && outlineWidth !== "0px";
      if (element !== document.body && !isSeen) window.unseen.push(element.outerHTML.slice(0, 200));
      window.left.delete(element);
      // The way to the newest message leaves as soon as the end is in view.
      for (const gone of window.left) if (!gone.isConnected) window.left.delete(gone);
      return window.left.size;
    });
  }
  const missed = await page.evaluate(() => [...window.left].map((element) => element.outerHTML.slice(0, 200)));
  check(`what Tab does not reach: ${view}`, missed, []);
  check(`what has the focus and does not show it: ${view}`, await page.evaluate(() => window.unseen), []);
}

/** A page without a login offers its button to the keyboard. */
async function signedOut(page, pages) {
  const other = await (await pages.profile()).newPage();
  await other.goto(pages.address);
  await other.waitForSelector(".banner");
  const asked = other.waitForRequest("**/ui/info");
  await enter(other, ".banner button");
  await asked;
}
