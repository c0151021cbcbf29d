/** An agent that sends markup, scripts, links that run something, escapes and turned text in every place with text. */
import { createServer } from "node:http";

import { placeOf } from "./daemon.mjs";

/** Characters that control a terminal, or turn and hide what follows. */
const UNSEEN = /[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]/;
const PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
const LONG = 10_000_000;

/** Returns attacks, each of them a paragraph. `spy` is the address of a server that nothing may ask. */
function attacks(spy) {
  return [
    `<script>window.pwned=1;fetch("${spy}")</script>`,
    `<img src="${spy}" onerror="window.pwned=2"><svg onload="window.pwned=3">`,
    '<iframe srcdoc="<script>parent.pwned=4</script>">',
    `![picture](${spy} "title") ![p](x" onerror="window.pwned=5 "y)`,
    "[script](javascript:window.pwned=6) [Case](JaVaScRiPt:window.pwned=7) [blank](<java\tscript:window.pwned=8>)",
    "[data](data:text/html,<script>opener.pwned=9</script>) [vb](vbscript:window.pwned=10)",
    "<javascript:window.pwned=11> <a href='javascript:window.pwned=12'>anchor</a>",
    `<form action="${spy}"><button autofocus onfocus="window.pwned=13">`,
    "</textarea></title></style><base href='//evil.test/'><link rel=stylesheet href='//evil.test/'>",
    "\u001b]0;owned\u0007\u001b[2Jcleared \u001b]8;;http://evil.test/\u001b\\link\u001b]8;;\u001b\\",
    "\u009b31m red \u0000 nul \b\b\b back",
    "\u202egpj.exe\u202c \u2066isolated \u2067turned\u2069 zero\u200bwidth \ufeffmark",
  ].join("\n\n");
}

/** Returns lines of a prompt that put a text into every place of a conversation. */
function everywhere(text) {
  const update = (sessionUpdate, more) => `update ${JSON.stringify({ sessionUpdate, ...more })}`;
  const image = (mimeType, data) => update("agent_message_chunk", { content: { type: "image", mimeType, data } });
  const content = [
    { type: "content", content: { type: "text", text } },
    { type: "diff", path: text, oldText: text, newText: `${text}\nmore` },
  ];
  const call = { toolCallId: "hostile", title: text, kind: "edit", rawInput: { command: text }, content };
  const asked = { ...call, toolCallId: "asked", status: "pending" };
  const options = [
    { optionId: text, name: text, kind: "allow_once" },
    { optionId: "no", name: "No", kind: "reject_once" },
  ];
  return [
    `speak ${JSON.stringify(text)}`,
    update("agent_thought_chunk", { content: { type: "text", text } }),
    update("tool_call", { ...call, status: "completed" }),
    update("plan", { entries: [{ content: text, priority: "high", status: "pending" }] }),
    update("available_commands_update", {
      availableCommands: [{ name: "hostile", description: text, input: { hint: text } }],
    }),
    image("image/svg+xml", btoa("<svg xmlns='http://www.w3.org/2000/svg' onload='parent.pwned=14'/>")),
    image("text/html", btoa("<script>parent.pwned=15</script>")),
    image("image/png", `${PIXEL}" onerror="window.pwned=16`),
    image("image/png", PIXEL),
    `request session/request_permission ${JSON.stringify({ toolCall: asked, options })}`,
  ].join("\n");
}

/** Returns what is wrong in a page's document. */
function faults(unseen) {
  const pattern = new RegExp(unseen);
  const elements = [...document.querySelectorAll("body *")];
  const tags = /^(SCRIPT|IFRAME|OBJECT|EMBED|STYLE|LINK|BASE|META|SVG)$/i;
  const foreign = elements.filter((one) => tags.test(one.tagName));
  const handlers = elements.filter((one) => [...one.attributes].some(({ name }) => name.startsWith("on")));
  const links = [...document.querySelectorAll("a[href]")].map((link) => new URL(link.href));
  const images = [...document.images].map((image) => image.src.slice(0, 22));
  const texts = elements.flatMap((one) => [one.textContent, one.title, one.ariaLabel, one.value]);
  return {
    pwned: window.pwned ?? null,
    foreign: foreign.map((one) => one.outerHTML.slice(0, 200)),
    handlers: handlers.map((one) => one.outerHTML.slice(0, 200)),
    links: links.filter(({ protocol }) => !["http:", "https:", "mailto:"].includes(protocol)).map(String),
    images: images.filter((source) => source !== "data:image/png;base64,"),
    texts: texts.filter((text) => pattern.test(text ?? "")).map((text) => text.slice(0, 200)),
  };
}
const NONE = { pwned: null, foreign: [], handlers: [], links: [], images: [], texts: [] };

/** Unfolds everything, and clicks on what looks like a link and is none. */
async function poke(page) {
  for (const summary of await page.locator(".scroller details:not([open]) > summary").all()) await summary.click();
  for (const text of ["script", "data", "vb"]) {
    for (const link of await page.locator(".scroller .item.text span", { hasText: new RegExp(`^${text}$`) }).all()) {
      await link.click();
    }
  }
}

export default async function ({ check, daemon, open, pages }) {
  const asked = [];
  const spy = createServer((request, response) => {
    asked.push(request.url);
    response.end();
  });
  await new Promise((resolve) => spy.listen(0, "127.0.0.1", resolve));
  const text = attacks(`http://127.0.0.1:${spy.address().port}/spy`);
  const id = await daemon.create();
  const page = await open(placeOf(id));
  const windows = page.context().pages().length;
  // The first prompt becomes the title of the session, and the agent repeats it.
  await daemon.prompt(id, text);
  await daemon.settled(id);
  await daemon.prompt(id, everywhere(text));
  await page.locator(".question.open .answers").waitFor();
  await page.locator(".item.plan").waitFor();
  await page.fill("form.input textarea", "/");
  await page.locator(".commands").waitFor();
  await poke(page);
  check("faults of the document", await page.evaluate(faults, UNSEEN.source), NONE);
  check("the title of the window", await page.title(), "(1) agentd");
  check("pictures", await page.locator(".scroller img").count(), 1);
  check("markup is shown as text", (await page.getByText("<script>window.pwned=1;").count()) > 0, true);

  await page.locator(".question .answers .allow").click();
  await page.locator(".question.answered .answer b").waitFor();
  await daemon.settled(id);
  await daemon.prompt(id, `stderr ${text.split("\n\n").join(" ")}\nerror`);
  await page.locator(".item.ended p").last().waitFor();
  await daemon.prompt(id, `bigline ${LONG}`);
  await daemon.settled(id);
  await page.getByRole("button", { name: /10,000,000 characters/ }).waitFor();
  await daemon.prompt(id, "say still here");
  await page.locator(".item.text", { hasText: "still here" }).waitFor();

  await page.reload();
  await page.locator(".item.text", { hasText: "still here" }).waitFor();
  await page.goto(`${page.url().split("#")[0]}#/`);
  await page.waitForSelector(`[data-session="${id}"]`);
  await page.click(`[data-session="${id}"]`);
  await page.fill("form.input textarea", "say by hand");
  await page.press("form.input textarea", "Enter");
  await page.locator(".item.text", { hasText: "by hand" }).waitFor();
  await poke(page);
  check("faults of the document at last", await page.evaluate(faults, UNSEEN.source), NONE);
  await page.getByRole("button", { name: "Remove", exact: true }).click();
  await page.locator("dialog[open] h2").waitFor();
  check("faults of the dialog", await page.evaluate(faults, UNSEEN.source), NONE);

  check("requests to the spy", asked, []);
  check("further windows", page.context().pages().length, windows);
  check(
    "what the policy had to stop",
    pages.said.filter((line) => line.includes("Content Security Policy")),
    [],
  );
  spy.close();
}
