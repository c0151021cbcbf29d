/** What a session's screen must show, from its journal, and what it shows. Markers and notes are left out. */

import { isDeepStrictEqual } from "node:util";

import { sees } from "./checks.mjs";

/** Texts are compared without blanks and stars: markup moves them. */
const packed = (text) => text.replace(/[\s*]+/g, "");

/** Joins neighbours that are parts of one text. */
function joined(entries) {
  const all = [];
  for (const entry of entries) {
    const last = all.at(-1);
    if (entry.kind === "text" && last?.kind === "text") last.text += packed(entry.text);
    else all.push({ kind: entry.kind, text: packed(entry.text) });
  }
  return all;
}

/** Returns the texts of an agent's messages, joined. */
export function said(journal) {
  return journal
    .map((event) => updateOf(event))
    .filter(isMessage)
    .map(({ content }) => content.text)
    .join("");
}

/** Returns the update of a record of the agent, if it is one. */
function updateOf({ kind, data }) {
  return kind === "agent.out" && data.method === "session/update" ? data.params.update : undefined;
}

const isMessage = (update) => update?.sessionUpdate === "agent_message_chunk";

/**
 * Returns what the journal says, in the order of the screen: prompts where their turns began, texts, tool calls,
 * questions with the names of their answers, and the ends of turns.
 */
export function written(journal) {
  const entries = [];
  const started = new Set(journal.filter(({ kind }) => kind === "turn.started").map(({ data }) => data.turn));
  const prompts = new Map();
  const questions = new Map();
  const add = (kind, text) => entries.push({ kind, text });
  for (const event of journal) {
    const { kind, data } = event;
    const update = updateOf(event);
    if (kind === "turn.queued") {
      prompts.set(data.turn, data.prompt);
    } else if (kind === "turn.started") {
      add("prompt", prompts.get(data.turn));
    } else if (kind === "turn.ended") {
      // A withdrawn prompt stands where it was withdrawn.
      if (!started.has(data.turn)) add("prompt", prompts.get(data.turn));
      add("ended", data.turn);
    } else if (kind === "permission.requested") {
      add("question", data.request.id);
      questions.set(data.request.id, { entry: entries.at(-1), options: data.request.options });
    } else if (kind === "permission.resolved") {
      const { entry, options } = questions.get(data.permission);
      entry.text += options.find(({ id }) => id === data.outcome.selected)?.name ?? "";
    } else if (isMessage(update)) add("text", update.content.text);
    else if (update?.sessionUpdate === "tool_call") add("tool", update.title);
  }
  // Prompts that wait are at the end.
  const ended = new Set(journal.filter(({ kind }) => kind === "turn.ended").map(({ data }) => data.turn));
  for (const [turn, prompt] of prompts) if (!started.has(turn) && !ended.has(turn)) add("prompt", prompt);
  return joined(entries);
}

/** Returns what a page shows, in the same form. */
export async function shown(page) {
  const entries = await page.$$eval(".scroller > .item", (items) =>
    items.flatMap((item) => {
      if (item.dataset.turnEnded !== undefined) return { kind: "ended", text: item.dataset.turnEnded };
      const kind = ["prompt", "text", "tool", "question"].find((name) => item.classList.contains(name));
      const text = (part) => item.querySelector(part)?.textContent ?? "";
      switch (kind) {
        case "prompt":
          return { kind, text: text(".plain") };
        case "text":
          return { kind, text: text(".markdown") };
        case "tool":
          return { kind, text: text(".title") };
        case "question":
          return { kind, text: `${item.dataset.permission}${text(".answer b")}` };
        default:
          return [];
      }
    }),
  );
  return joined(entries);
}

/** Waits until a page shows exactly what the session's journal has, each thing once. */
export async function sameAsJournal(page, daemon, id) {
  const difference = async () => {
    const [screen, journal] = [await shown(page), written(await daemon.journal(id))];
    const at = journal.findIndex((entry, index) => !isDeepStrictEqual(entry, screen[index]));
    if (at < 0 && screen.length === journal.length) return "none";
    const from = at < 0 ? journal.length : at;
    const part = (entries) => entries.slice(from, from + 3).map(({ kind, text }) => `${kind} ${text.slice(0, 500)}`);
    return { from, screen: part(screen), journal: part(journal) };
  };
  await sees("differences between the screen and the journal", difference, "none");
}

/** Scrolls a page up until it shows the session from its beginning. */
export async function fromBeginning(page) {
  await sees("the beginning of the session", async () => {
    await page.locator(".scroller").evaluate((element) => element.scrollTo({ top: 0 }));
    return page.getByText("The beginning of the session").count();
  });
}
