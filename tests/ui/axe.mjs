/** Axe in every view, in each of the page's looks. It may find nothing serious or critical. */
import { readFileSync } from "node:fs";

import { check, sees } from "./checks.mjs";
import { placeOf } from "./daemon.mjs";
import { conversation, panels, scenes, show, unfold } from "./scenes.mjs";

const PANELS = [
  "state",
  "prerequisites",
  "environment",
  "differences",
  "dropped",
  "snapshot",
  "plugins",
  "audit",
  "doctor",
];
const COLOURS = [{ colorScheme: "light" }, { colorScheme: "dark" }, { colorScheme: "dark", forcedColors: "active" }];
const LOOKS = [
  ...[360, 1280].flatMap((width) => COLOURS.map((colours) => ({ ...colours, viewport: { width, height: 800 } }))),
  { colorScheme: "light", contrast: "more", viewport: { width: 1280, height: 800 } },
];

export default async function (tools) {
  const { open, pages, require, settings } = tools;
  const source = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
  const first = await open();
  await first.waitForSelector(".empty");
  const state = await pages.context.storageState();
  const found = [];
  const views = {};
  const look = async (storageState, visit) => {
    for (const options of LOOKS) {
      // Axe is no part of the page, so the page's policy would refuse it.
      const context = await pages.profile({ ...options, storageState, bypassCSP: true });
      const page = await context.newPage();
      await page.goto(`${settings.address}/#/`);
      await visit(page, async (view) => {
        views[view] = (views[view] ?? 0) + 1;
        const findings = await serious(page, source, options.forcedColors !== undefined);
        found.push(...findings.map((words) => [view, options, words]));
      });
      await context.close();
    }
  };
  await look(undefined, async (page, axe) => {
    await page.waitForSelector(".banner");
    await axe("signed out");
  });
  await look(state, async (page, axe) => {
    await page.waitForSelector(".empty");
    await axe("empty list");
  });
  const ids = await scenes(tools);
  await look(state, async (page, axe) => {
    const { sessions } = await tools.daemon.document("GET", "/v1/sessions");
    await sees("all sessions", () => page.locator("[data-session]").count(), sessions.length);
    await visits(page, axe, ids);
  });
  check("views that were looked at", new Set(Object.values(views)), new Set([LOOKS.length]));
  check("what axe finds", found, []);
}

/**
 * Returns the findings of axe that are serious or critical.
 *
 * Forced colours are chosen when a text is drawn, and axe reads those of the page. So its rule about contrast is left
 * out there, and no text may keep its own colours.
 */
async function serious(page, source, isForced) {
  await page.evaluate(source);
  const options = { resultTypes: ["violations"], rules: { "color-contrast": { enabled: !isForced } } };
  const { violations, passes } = await page.evaluate((options) => axe.run(options), options);
  check("axe has looked at the page", passes.length > 10, true);
  const kept = await page.evaluate(() =>
    [...document.querySelectorAll("body *")]
      .filter((element) => getComputedStyle(element).forcedColorAdjust === "none" && element.textContent !== "")
      .map((element) => element.outerHTML.slice(0, 200)),
  );
  check("texts that keep their colours", kept, []);
  return violations
    .filter(({ impact }) => impact === "serious" || impact === "critical")
    .map(({ id, nodes }) => [id, nodes.length, nodes[0].html.slice(0, 200), nodes[0].failureSummary]);
}

/** Visits every view of the page with sessions. */
async function visits(page, axe, ids) {
  await page.waitForSelector(`[data-session="${ids.asking}"]`);
  await axe("list");
  await page.fill("#filter", "no session has this");
  await page.waitForSelector(".empty");
  await axe("list without a match");
  await page.fill("#filter", "");
  await page.press("#filter", "Escape");
  await page.keyboard.press("?");
  await page.waitForSelector("dialog.keylist[open]");
  await axe("keys");
  await page.keyboard.press("Escape");

  await conversation(page, ids.asking, ".question.open");
  await unfold(page);
  await axe("conversation with a question");
  await page.fill("form.input textarea", "/");
  await page.waitForSelector(".commands li");
  await axe("commands of the agent");
  await page.fill("form.input textarea", "");
  await conversation(page, ids.form, ".question.open");
  await axe("question with a form");
  await conversation(page, ids.working, ".text");
  await page.waitForSelector(".queue li");
  await axe("working session with a queue");
  await conversation(page, ids.stopped, ".marker");
  await page.locator(".head .menu > summary").click();
  await axe("stopped session");
  await page.locator(".head .menu > summary").click();
  await page.getByRole("button", { name: "Remove", exact: true }).click();
  await page.waitForSelector(".head dialog[open]");
  await axe("removing");
  await page.keyboard.press("Escape");
  await page.getByRole("button", { name: "Resume", exact: true }).click();
  await page.waitForSelector(".problem");
  await axe("problem of a session");
  await show(page, placeOf("aaaaaaaaaaaa"));
  await page.waitForSelector(".problem");
  await axe("unknown session");

  await panels(page, ids.asking, PANELS);
  await axe("why panels");
  await panels(page, ids.waiting, PANELS);
  await axe("why panels of a waiting session");
  await create(page, axe);
}

/** Visits the form for a new session, with proposals and with a refusal. */
async function create(page, axe) {
  await show(page, "#/create");
  await page.locator(".creation .more > summary").click();
  const directory = page.getByRole("combobox", { name: "Directory" });
  await directory.fill("/");
  await page.waitForSelector("[role=listbox]");
  await axe("create form");
  await directory.fill("/nonexistent/directory");
  await page.getByRole("button", { name: "Create the session" }).click();
  await page.locator(".creation .result [role=alert], .creation .result .problem").first().waitFor();
  await axe("problem of the create form");
}
