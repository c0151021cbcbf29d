/** Sessions of each kind for the views of the page, with names and texts that are the same in each run. */
import { sees } from "./checks.mjs";
import { placeOf } from "./daemon.mjs";
import { update } from "./measures.mjs";

const TEXT = `# Nested quotes

The parser has **no test** for \`nested\` quotes. See [the documentation](https://example.com/quotes).

| case | result |
|---|---|
| quotes | passes |
| nested quotes | fails |

\`\`\`rust
fn main() { println!("hello"); }
\`\`\`

1. Read the parser.
2. Add a test.

> Quotes within quotes are rare.`;

const PIXELS =
  "iVBORw0KGgoAAAANSUhEUgAAABAAAAAQCAIAAACQkWg2AAAAFklEQVR42mNgYPhPIhrVMKphVMPAaQAA5LX+QdhmP1EAAAAASUVORK5CYII=";

/** Lines of a turn that has everything which a conversation shows. */
const everything = (directory) => [
  update({ sessionUpdate: "agent_thought_chunk", content: { type: "text", text: "The tests come first." } }),
  `speak ${JSON.stringify(TEXT)}`,
  update({
    sessionUpdate: "plan",
    entries: [
      { content: "Read the parser", priority: "high", status: "completed" },
      { content: "Add a test", priority: "high", status: "in_progress" },
      { content: "Run the tests", priority: "low", status: "pending" },
    ],
  }),
  update({
    sessionUpdate: "tool_call",
    toolCallId: "run",
    title: "cargo test",
    kind: "execute",
    status: "in_progress",
    rawInput: { command: "cargo test" },
  }),
  update({
    sessionUpdate: "tool_call_update",
    toolCallId: "run",
    status: "completed",
    content: [{ type: "content", content: { type: "text", text: "test quotes ... ok\ntest nested ... FAILED\n" } }],
  }),
  update({
    sessionUpdate: "tool_call",
    toolCallId: "edit",
    title: "Edit src/parser.rs",
    kind: "edit",
    status: "completed",
    content: [
      {
        type: "diff",
        path: `${directory}/src/parser.rs`,
        oldText: "fn quotes() {\n    one();\n    two();\n}\n",
        newText: "fn quotes() {\n    one();\n    nested();\n    two();\n}\n",
      },
    ],
  }),
  update({
    sessionUpdate: "agent_message_chunk",
    content: { type: "image", mimeType: "image/png", data: PIXELS },
  }),
  update({
    sessionUpdate: "available_commands_update",
    availableCommands: [
      { name: "review", description: "Review the change", input: { hint: "path" } },
      { name: "compact", description: "Shorten the context" },
    ],
  }),
  "say The test is there.",
  "cost 0.12 USD",
];

export const COMMAND = "git push --force origin main";
const QUESTION = {
  call: { toolCallId: "push", title: "Push the branch", kind: "execute", rawInput: { command: COMMAND } },
};
const FORM = {
  mode: "form",
  message: "Which build shall it be?",
  requestedSchema: {
    type: "object",
    properties: {
      jobs: { type: "integer", title: "Jobs", default: 4 },
      kind: { type: "string", enum: ["debug", "release"] },
      clean: { type: "boolean", title: "Clean first" },
      note: { type: "string", description: "Anything else" },
    },
    required: ["kind"],
  },
};
export const ask = `ask-for ${JSON.stringify(QUESTION)}`;
export const askWithForm = `elicit ${JSON.stringify(FORM)}`;

/** Makes the sessions one after another, and returns their ids by name. */
export async function scenes({ daemon, settings }) {
  const { spec } = settings;
  const turn = async (id, lines) => {
    await daemon.prompt(id, [lines].flat().join("\n"));
    await daemon.settled(id);
  };
  const asks = async (id, line) => {
    await daemon.prompt(id, line);
    await sees("a question", async () => (await daemon.view(id)).status.permissions.length, 1);
  };
  const phase = (id, name) => sees(`the phase ${name}`, async () => (await daemon.view(id)).status.phase, name);
  const create = async (more) => (await daemon.document("POST", "/v1/sessions", { ...spec, ...more })).id;
  const ids = {};
  ids.stopped = await daemon.create({ name: "release-notes", labels: { team: "docs" } });
  await turn(ids.stopped, "say The notes are written.");
  await daemon.document("POST", `/v1/sessions/${ids.stopped}/stop`);
  await phase(ids.stopped, "stopped");
  // A resume of this session is refused.
  await daemon.document("PATCH", `/v1/sessions/${ids.stopped}`, { requires: ["board"] });
  ids.failed = await create({ name: "broken", command: ["/nonexistent/agent"] });
  await phase(ids.failed, "failed");
  const waiting = { ...spec, name: "lab-measurement", requires: ["board"] };
  ids.waiting = (await daemon.document("POST", "/v1/sessions?wait_for_prerequisites=1h", waiting)).id;
  await phase(ids.waiting, "waiting");
  ids.idle = await daemon.create({ name: "quiet", labels: { team: "web" } });
  await turn(ids.idle, "say Nothing is left to do.");
  ids.working = await daemon.create({ name: "slow-build", labels: { team: "web" } });
  await daemon.prompt(ids.working, "say It takes a while.\nhang");
  await daemon.prompt(ids.working, "say then the next one");
  await phase(ids.working, "busy");
  ids.form = await daemon.create({ name: "build-question" });
  await asks(ids.form, askWithForm);
  ids.asking = await daemon.create({ name: "parser-tests", labels: { area: "parser", team: "web" } });
  await turn(ids.asking, everything(spec.directory));
  await daemon.document("PUT", `/v1/sessions/${ids.asking}/title`, { title: "Nested quotes in the parser" });
  await daemon.document("PATCH", `/v1/sessions/${ids.asking}/context`, {
    sets: {
      files: [`${spec.directory}/src/parser.rs`, `${spec.directory}/notes.md`],
      ports: ["8080"],
      endpoints: ["http://127.0.0.1:3000/app"],
      applet: ["wave", "zoom=2"],
    },
    applet_url: "http://localhost:8000/wave",
  });
  await asks(ids.asking, ask);
  return ids;
}

/** Shows another place in an open page. */
export async function show(page, place) {
  await page.evaluate((place) => (location.hash = place), place);
  await page.waitForFunction((place) => location.hash === place, place);
}

/** Shows the conversation of a session, and waits for its last item. */
export async function conversation(page, id, last) {
  await show(page, placeOf(id));
  await page.waitForSelector('.talk [data-state="live"]');
  await page.locator(`.scroller > .item${last}`).last().waitFor();
}

/** Shows the panels of a session with these ones open, and waits for what they load. */
export async function panels(page, id, names) {
  await show(page, `${placeOf(id)}/why`);
  for (const panel of await page.locator(".panel").all()) {
    const isWanted = names.includes(await panel.getAttribute("data-panel"));
    if ((await panel.evaluate((element) => element.open)) !== isWanted) await panel.locator("summary").first().click();
  }
  await sees("busy panels", () => page.locator(".panels [aria-busy=true]").count(), 0);
  await page.locator(".panels").getByText("Loading…").first().waitFor({ state: "detached" });
}

/** Unfolds everything in the conversation. */
export async function unfold(page) {
  const folded = page.locator(".scroller details:not([open]) > summary");
  while ((await folded.count()) > 0) await folded.first().click();
}
