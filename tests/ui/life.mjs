/** A session's life by the page's controls: created, prompted, asked, cancelled, stopped, resumed, removed. */
import { sameAsJournal } from "./transcript.mjs";

const CALL = { toolCallId: "q", title: "Tidy up", kind: "execute", rawInput: { command: "rm -rf build" } };

export default async function ({ check, daemon, open, sees, settings }) {
  // Its directory is the one that the form proposes.
  const first = await daemon.create();
  const page = await open();
  const id = await create(page, settings.spec.directory);
  check("another session was created", id !== first, true);
  const { spec } = await daemon.view(id);
  const asked = [settings.spec.directory, "scripted", "formed"];
  check("the session is as the form says", [spec.directory, spec.agent, spec.name], asked);

  const matches = () => sameAsJournal(page, daemon, id);
  const send = async (text) => {
    await page.fill("form.input textarea", text);
    await page.press("form.input textarea", "Enter");
    await sees("the text is sent", () => page.inputValue("form.input textarea"), "");
  };
  const phase = (name) => page.waitForSelector(`.head [data-phase="${name}"]`);

  await page.locator(".item.text", { hasText: "from the form" }).waitFor();
  await phase("idle");
  await send("say **bold** words\nsay  and more");
  await page.locator(".item.text strong", { hasText: "bold" }).waitFor();
  await matches();

  // A question is answered by a key, and the next one by a button.
  await send(`ask-for ${JSON.stringify({ call: CALL })}`);
  const question = page.locator(".question.open");
  check("the command is in view", await question.locator(".command").textContent(), "rm -rf build");
  await sees("the title counts the question", () => page.title(), "(1) agentd");
  check("its group", await page.locator('[data-group="needs"] [data-session]').getAttribute("data-session"), id);
  await page.locator(".scroller").focus();
  await sees(
    "the key 1 answers",
    async () => {
      // A new question ignores keys for a moment.
      await page.keyboard.press("1");
      return page.locator(".question.answered").count();
    },
    1,
  );
  await page.locator(".item.text", { hasText: "chosen yes" }).waitFor();
  await sees("the title counts nothing", () => page.title(), "agentd");
  await send(`ask-for ${JSON.stringify({ call: CALL })}`);
  await question.locator('[data-option="no"]').click();
  await page.locator(".item.text", { hasText: "chosen no" }).waitFor();
  await matches();

  // A message waits behind a turn, and is withdrawn. Then the turn is cancelled.
  await send("hang");
  await page.getByRole("button", { name: "Cancel the turn" }).waitFor();
  await send("say never");
  await page.locator(".queue li", { hasText: "say never" }).getByRole("button").click();
  await page.locator(".queue").waitFor({ state: "detached" });
  await page.getByRole("button", { name: "Cancel the turn" }).click();
  await page.locator(".item.ended", { hasText: "Cancelled" }).first().waitFor();
  await phase("idle");
  await matches();
  const texts = (await daemon.journal(id)).filter(({ kind }) => kind === "turn.started").length;
  check("turns that began", texts, 5);

  await page.getByRole("button", { name: "Stop", exact: true }).click();
  await phase("stopped");
  await page.getByRole("button", { name: "Resume", exact: true }).click();
  await phase("idle");
  await send("say after the pause");
  await page.locator(".item.text", { hasText: "after the pause" }).waitFor();
  await matches();

  await page.getByRole("button", { name: "Remove", exact: true }).click();
  await page.locator("dialog[open]").getByRole("button", { name: "Remove", exact: true }).click();
  await page.waitForSelector(".view-list");
  await sees("the list without the session", () => page.locator(`[data-session="${id}"]`).count(), 0);
  check("the session is gone", (await daemon.call("GET", `/v1/sessions/${id}`)).status, 404);
  check("the other session is there", await page.locator(`[data-session="${first}"]`).count(), 1);
}

/** Creates a session by the form, with a proposed directory, and returns its id. */
async function create(page, directory) {
  await page.keyboard.press("n");
  const field = page.getByRole("combobox", { name: "Directory", exact: true });
  await field.fill(directory.slice(0, -2));
  await page.getByRole("option", { name: directory, exact: true }).waitFor();
  await field.press("ArrowDown");
  await field.press("Enter");
  await page.getByLabel("Agent", { exact: true }).selectOption("scripted");
  await page.getByLabel("First prompt").fill("say hello from the form");
  await page.getByText("More", { exact: true }).click();
  await page.getByLabel("Name", { exact: true }).fill("formed");
  await page.getByRole("button", { name: "Create the session" }).click();
  await page.waitForURL(/#\/session\/this\//);
  return page.url().split("/").at(-1);
}
