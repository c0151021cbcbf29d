/** Two pages of one session, a wide and a narrow one. One answers a question, and both show everything once. */
import { placeOf } from "./daemon.mjs";
import { sameAsJournal } from "./transcript.mjs";

const CALL = { toolCallId: "q", title: "Run it", kind: "execute", rawInput: { command: "make all" } };

export default async function ({ check, daemon, open }) {
  const id = await daemon.create();
  const [wide, narrow] = [await open(placeOf(id)), await open(placeOf(id))];
  await narrow.setViewportSize({ width: 360, height: 640 });
  const both = [wide, narrow];
  await daemon.prompt(id, `ask-for ${JSON.stringify({ call: CALL })}`);
  for (const page of both) {
    const question = page.locator(".question.open");
    await question.waitFor();
    check("the command is in view", await question.locator(".command").textContent(), "make all");
    check("the answers", await question.locator(".answers button bdi").allTextContents(), ["Yes", "No"]);
  }
  await wide.locator('.question [data-option="yes"]').click();
  await narrow.locator(".question.answered .answer b").waitFor();
  const [resolved] = (await daemon.journal(id)).filter(({ kind }) => kind === "permission.resolved");
  const { program, pid } = resolved.data.requester;
  check("the journal names the program", program.split("/").at(-1), "agentctl");
  for (const page of both) {
    const answer = await page.locator(".question.answered .answer").textContent();
    check("who answered", answer, `Yes – answered by agentctl (process ${pid})`);
    check("buttons", await page.locator(".question button").count(), 0);
  }
  const input = narrow.locator("form.input textarea");
  await input.fill("say from the narrow page");
  await input.press("Enter");
  for (const page of both) {
    await page.locator(".item.text", { hasText: "from the narrow page" }).waitFor();
    await sameAsJournal(page, daemon, id);
  }
}
