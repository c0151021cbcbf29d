/** The daemon is killed in mid-turn and started again, while a page shows the session. */
import { placeOf } from "./daemon.mjs";
import { fromBeginning, said, sameAsJournal } from "./transcript.mjs";

/** Numbers that the agent says, and milliseconds between two. */
const NUMBERS = 60;
const PAUSE = 50;

export default async function ({ ask, check, daemon, open, sees }) {
  const id = await daemon.create();
  const page = await open(placeOf(id));
  const state = (name) => page.waitForSelector(`.talk [data-state="${name}"]`);
  await state("live");
  // The turn goes on until it is cancelled, so the daemon is killed in the middle of it.
  await daemon.prompt(id, `say before\ncount ${NUMBERS} ${PAUSE}\nhang`);
  await page.locator(".item.text", { hasText: /before1\s2\s3/ }).waitFor();

  await ask("kill daemon");
  await state("waiting");
  check("the list has the state too", await page.locator('.host [data-state="waiting"]').count(), 1);
  const words = await page.textContent(".talk .connection [role=status]");
  check(`the state in words: ${words}`, words.startsWith("Not connected: "), true);
  // A message that cannot be sent is neither lost nor sent twice.
  const input = page.locator("form.input textarea");
  await input.fill("say typed without a daemon");
  await input.press("Enter");
  await page.waitForSelector('[role=alert][data-code="ui.host_unreachable"]');
  await page.getByRole("button", { name: "Queue", exact: true }).waitFor();
  check("the text stays", await input.inputValue(), "say typed without a daemon");

  await ask("start daemon");
  await state("live");
  const last = page.locator(".item.text").last();
  await sees(
    "the last number",
    () => last.textContent(),
    (text) => text.trim().endsWith(String(NUMBERS)),
  );
  for (const marker of ["recovered", "gap"]) {
    check(`markers ${marker}`, await page.locator(`[data-marker="${marker}"]`).count(), 1);
  }
  const recovered = (await daemon.journal(id)).filter(({ kind }) => kind === "daemon.recovered");
  check(
    "the agent was alive",
    recovered.map(({ data }) => data.agent_alive),
    [true],
  );
  await input.press("Enter");
  await page.locator(".queue li", { hasText: "typed without a daemon" }).waitFor();
  await page.getByRole("button", { name: "Cancel the turn" }).click();
  await page.locator(".item.text", { hasText: /^typed without a daemon$/ }).waitFor();
  await sameAsJournal(page, daemon, id);
  const numbers = Array.from({ length: NUMBERS }, (_, index) => `${index + 1}\n`).join("");
  check("the journal has each number once", said(await daemon.journal(id)), `before${numbers}typed without a daemon`);

  await page.reload();
  await state("live");
  await fromBeginning(page);
  await sameAsJournal(page, daemon, id);
  check("the marker of the journal", await page.locator('[data-marker="recovered"]').count(), 1);
  check("no interruption of this page", await page.locator('[data-marker="gap"]').count(), 0);
}
