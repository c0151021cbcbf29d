/** The agent is killed in mid-turn, and the session is resumed from the page. */
import { placeOf } from "./daemon.mjs";
import { fromBeginning, sameAsJournal } from "./transcript.mjs";

export default async function ({ ask, check, daemon, open, sees }) {
  const id = await daemon.create();
  const page = await open(placeOf(id));
  const input = page.locator("form.input textarea");
  await input.fill("say half of it\nhang");
  await input.press("Enter");
  await page.locator(".item.text", { hasText: "half of it" }).waitFor();
  check("killed agents", await ask("kill agent"), 1);
  await page.locator(".item.ended", { hasText: "agentd ended the turn" }).waitFor();
  const exited = page.locator('[data-marker="exited"]');
  await exited.waitFor();
  check("the marker names the signal", (await exited.textContent()).includes("The agent ended by signal"), true);
  await page.waitForSelector('.head [data-phase="failed"]');
  await sees("the title counts the session", () => page.title(), "(1) agentd");
  await sameAsJournal(page, daemon, id);

  await page.getByRole("button", { name: "Resume", exact: true }).click();
  await page.waitForSelector('.head [data-phase="idle"]');
  await input.fill("say the other half");
  await input.press("Enter");
  await page.locator(".item.text", { hasText: "the other half" }).waitFor();
  await sees("the title counts nothing", () => page.title(), "agentd");
  await sameAsJournal(page, daemon, id);
  await page.reload();
  await fromBeginning(page);
  await sameAsJournal(page, daemon, id);
}
