import assert from "node:assert/strict";
import { test } from "node:test";

import { Conversation, type Event } from "./conversation";
import { secondsOf } from "./tools";

let seq = 0;
const record = (kind: string, data: unknown, at = (seq += 1)): Event =>
  ({ seq: at, time: new Date(at * 1000).toISOString(), kind, data }) as unknown as Event;
const update = (fields: Record<string, unknown>): Event =>
  record("agent.out", { jsonrpc: "2.0", method: "session/update", params: { sessionId: "c", update: fields } });
const say = (text: string): Event => update({ sessionUpdate: "agent_message_chunk", content: { type: "text", text } });
const think = (text: string): Event =>
  update({ sessionUpdate: "agent_thought_chunk", content: { type: "text", text } });
const shown = (of: Conversation): string[] =>
  of.items.map((item) => ("text" in item ? `${item.kind}: ${item.text}` : item.kind));

function begin(...events: Event[]): Conversation {
  const conversation = new Conversation();
  for (const event of events) conversation.append(event);
  return conversation;
}

test("pieces of a text are one item, and another kind begins another", () => {
  const conversation = begin(say("Hello "), say("there"), think("hm"), think("."), say("Bye"));
  assert.deepEqual(shown(conversation), ["text: Hello there", "thought: hm.", "text: Bye"]);
});

test("a repeated record changes nothing", () => {
  const [first, second] = [say("one "), say("two")];
  const conversation = begin(first, second);
  assert.equal(conversation.append(second), false);
  assert.equal(conversation.append(first), false);
  assert.deepEqual(shown(conversation), ["text: one two"]);
});

test("a prompt stands where its turn began, behind its note", () => {
  const conversation = begin(
    record("turn.queued", { turn: "t1", prompt: "a" }),
    record("turn.started", { turn: "t1", rpc: 1 }),
    record("turn.queued", { turn: "t2", prompt: "b" }),
    say("answer to a"),
  );
  assert.deepEqual(shown(conversation), ["prompt: a", "text: answer to a", "prompt: b"]);
  conversation.append(record("turn.ended", { turn: "t1", stop_reason: "end_turn" }));
  conversation.append(record("turn.started", { turn: "t2", rpc: 2, note: "resumed" }));
  assert.deepEqual(shown(conversation), ["prompt: a", "text: answer to a", "ended", "note: resumed", "prompt: b"]);
  assert.ok(conversation.items.every((item) => item.kind !== "prompt" || !item.queued));
});

test("a question has its tool call as the agent sent it, in the request or before", () => {
  const ask = (toolCall: unknown) =>
    record("agent.out", { id: 1, method: "session/request_permission", params: { toolCall, options: [] } });
  const asked = (id: string, tool_call?: string) =>
    record("permission.requested", { request: { id, title: "x", options: [], details: { tool_call } } });
  const output = (text: string) => [{ type: "content", content: { type: "text", text } }];
  const conversation = begin(
    update({ sessionUpdate: "tool_call", toolCallId: "a", kind: "execute", rawInput: { command: "make" } }),
    ask({ toolCallId: "a", content: output("the plan") }),
    asked("p1", "a"),
    asked("p2", "a"),
    ask(null),
    asked("p3"),
    record("permission.requested", { request: { id: "p4", origin: "agentd", title: "stale", options: [] } }),
  );
  const tools = conversation.items.flatMap((item) => (item.kind === "question" ? [item.tool] : []));
  assert.deepEqual(
    tools.map((tool) => tool && [tool.command, tool.content.length]),
    [["make", 1], ["make", 0], [undefined, 0], undefined],
  );
});

test("a tool call has its command, its output and its duration, and a turn's end interrupts it", () => {
  const conversation = begin(
    update({
      sessionUpdate: "tool_call",
      toolCallId: "x",
      title: "make",
      kind: "execute",
      rawInput: { command: ["make", "test"] },
    }),
    update({
      sessionUpdate: "tool_call_update",
      toolCallId: "x",
      status: "in_progress",
      _meta: { terminal_output_delta: { data: "1\n" } },
    }),
    update({ sessionUpdate: "tool_call_update", toolCallId: "x", _meta: { terminal_output_delta: { data: "2\n" } } }),
  );
  const [item] = conversation.items;
  assert.ok(item?.kind === "tool");
  assert.equal(item.tool.command, "make test");
  assert.equal(item.tool.printed, "1\n2\n");
  conversation.append(record("turn.ended", { turn: "t", interrupted_tool_calls: ["x"] }));
  assert.equal(item.tool.status, "interrupted");
  assert.equal(Date.parse(item.tool.ended!) - Date.parse(item.tool.begun), 3000);
});

test("the duration of a tool call is without the time in which it waited for an answer", () => {
  const request = { id: "p", title: "rm", options: [], details: { tool_call: "x" } };
  const conversation = begin(
    update({ sessionUpdate: "tool_call", toolCallId: "x", title: "rm", status: "pending" }),
    record("permission.requested", { request }, (seq += 1)),
    record("permission.resolved", { permission: "p", outcome: { selected: "yes" }, by: "client" }, (seq += 10)),
    update({ sessionUpdate: "tool_call_update", toolCallId: "x", status: "completed" }),
  );
  const [item] = conversation.items;
  assert.ok(item?.kind === "tool");
  assert.equal(secondsOf(item.tool), 2);
});

test("a question before its tool call takes nothing from the time before the call", () => {
  const request = { id: "p", title: "rm", options: [], details: { tool_call: "x" } };
  const conversation = begin(
    record("permission.requested", { request }, (seq += 1)),
    update({ sessionUpdate: "tool_call", toolCallId: "x", title: "rm", status: "pending" }),
    record("permission.resolved", { permission: "p", outcome: { selected: "yes" }, by: "client" }, (seq += 10)),
    record("turn.queued", { turn: "t", prompt: "next" }, (seq += 4)),
    update({ sessionUpdate: "tool_call_update", toolCallId: "x", status: "completed" }),
  );
  const item = conversation.items.find(({ kind }) => kind === "tool");
  assert.ok(item?.kind === "tool");
  assert.equal(secondsOf(item.tool), 5);
});

test("a text that is no message of its own is not continued", () => {
  const link = { type: "resource_link", uri: "file:///a" };
  const events = [say("see "), update({ sessionUpdate: "agent_message_chunk", content: link }), say("and")];
  assert.deepEqual(shown(begin(...events)), ["text: see ", "text: file:///a", "text: and"]);
});

test("a question shows who answered and which option", () => {
  const request = { id: "p1", title: "rm", options: [{ id: "yes", name: "Yes", kind: "allow_once" }] };
  const conversation = begin(
    record("permission.requested", { request }),
    record("permission.requested", { request: { ...request, id: "p2" } }),
    record("permission.resolved", {
      permission: "p1",
      by: "client",
      outcome: { selected: "yes" },
      requester: { uid: 1, program: "/bin/agentctl" },
    }),
    record("permission.resolved", { permission: "p2", by: "cancel", outcome: "cancelled" }),
  );
  const answers = conversation.items.map((item) => (item.kind === "question" ? item.answer : undefined));
  assert.equal(answers[0]?.option, "yes");
  assert.equal(answers[0]?.requester?.program, "/bin/agentctl");
  assert.equal(answers[1]?.option, undefined);
  assert.equal(answers[1]?.by, "cancel");
});

test("older records in front give the same items as all records in order", () => {
  const events = [
    record("turn.queued", { turn: "t1", prompt: "a" }),
    record("turn.started", { turn: "t1", rpc: 1 }),
    update({ sessionUpdate: "tool_call", toolCallId: "y", title: "read", kind: "read", status: "in_progress" }),
    ...Array.from({ length: 20 }, (_, at) => say(`${at} `)),
    update({ sessionUpdate: "tool_call_update", toolCallId: "y", status: "completed" }),
    record("turn.ended", { turn: "t1", stop_reason: "end_turn" }),
  ];
  const whole = begin(...events);
  for (let cut = 1; cut < events.length; cut += 1) {
    const conversation = begin(...events.slice(cut));
    conversation.prepend(events.slice(0, cut).map((event) => ({ event, length: 100 })));
    assert.deepEqual(shown(conversation), shown(whole), `cut at ${cut}`);
    assert.equal(conversation.first, events[0]!.seq);
  }
});

test("a full conversation drops its oldest records, and its keys stay", () => {
  const conversation = new Conversation(100);
  let fullest = 0;
  for (let at = 0; at < 1000; at += 1) {
    conversation.append(update({ sessionUpdate: "tool_call", toolCallId: `z${at}`, title: `call ${at}` }));
    fullest = Math.max(fullest, conversation.size);
    if (conversation.isFull()) conversation.shortenFront();
  }
  assert.ok(fullest <= 126, `${fullest}`);
  const keys = conversation.items.map(({ key }) => key);
  conversation.shortenFront();
  assert.deepEqual(
    conversation.items.map(({ key }) => key),
    keys.slice(-conversation.items.length),
  );
  assert.equal(conversation.first, conversation.items[0]!.seq);
});

test("a long text goes on in a new item at the end of a paragraph, but not within code", () => {
  const paragraph = `${"word ".repeat(4_000)}\n\n`;
  assert.equal(begin(say(paragraph), say("next")).items.length, 2);
  assert.equal(begin(say(`\`\`\`\n${paragraph}`), say("next")).items.length, 1);
});

test("a time without a connection has a marker where it was, also after older records came", () => {
  const events = [say("before"), record("turn.queued", { turn: "t", prompt: "p" })];
  const conversation = begin(events[1]!);
  conversation.missed({ after: conversation.last, from: 1, to: 2 });
  conversation.append(say("after"));
  assert.deepEqual(shown(conversation), ["marker", "text: after", "prompt: p"]);
  conversation.prepend([{ event: events[0]!, length: 100 }]);
  assert.deepEqual(shown(conversation), ["text: before", "marker", "text: after", "prompt: p"]);
});

test("a text goes on in one item below a time without a connection", () => {
  const older = say("older ");
  const conversation = begin(say("one "));
  conversation.missed({ after: conversation.last, from: 1, to: 2 });
  for (const piece of ["two ", "three ", "four"]) conversation.append(say(piece));
  assert.deepEqual(shown(conversation), ["text: one ", "marker", "text: two three four"]);
  conversation.prepend([{ event: older, length: 100 }]);
  assert.deepEqual(shown(conversation), ["text: older one ", "marker", "text: two three four"]);
});

test("two messages that the agent names are two items, in both orders of reading", () => {
  const of = (messageId: string | undefined, words: string): Event =>
    update({ sessionUpdate: "agent_message_chunk", messageId, content: { type: "text", text: words } });
  const events = [of("m1", "a"), of("m1", "b"), of("m2", "c"), of("m2", "d"), of(undefined, "e")];
  assert.deepEqual(shown(begin(...events)), ["text: ab", "text: cd", "text: e"]);
  const conversation = begin(...events.slice(3));
  conversation.prepend(events.slice(0, 3).map((event) => ({ event, length: 100 })));
  assert.deepEqual(shown(conversation), ["text: ab", "text: cd", "text: e"]);
});

test("a prompt that waits, or an update of a tool, does not divide the text before it", () => {
  const events = [
    update({ sessionUpdate: "tool_call", toolCallId: "w", title: "run", status: "in_progress" }),
    say("wo"),
    update({ sessionUpdate: "tool_call_update", toolCallId: "w", status: "completed" }),
    say("rd "),
    record("turn.queued", { turn: "t2", prompt: "next" }),
    say("more"),
    record("turn.queued", { turn: "t3", prompt: "last" }),
    say("."),
  ];
  const conversation = begin(...events);
  assert.deepEqual(shown(conversation), ["tool", "text: word more.", "prompt: next", "prompt: last"]);
  conversation.append(record("turn.ended", { turn: "t3", stop_reason: "cancelled" }));
  conversation.append(record("turn.started", { turn: "t2", rpc: 1, note: "a note" }));
  const whole = ["tool", "text: word more.", "prompt: last", "ended", "note: a note", "prompt: next"];
  assert.deepEqual(shown(conversation), whole);
  const again = begin(...events.slice(3));
  again.prepend(events.slice(0, 3).map((event) => ({ event, length: 100 })));
  assert.deepEqual(shown(again), ["tool", "text: word more.", "prompt: next", "prompt: last"]);
});
