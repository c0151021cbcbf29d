import assert from "node:assert/strict";
import { test } from "node:test";

import { changed } from "./diff";
import { fields, parsed } from "./form";
import { fragment, parse, type Route } from "./route";
import { editorAddress, pieces, safe, short, visible } from "./text";

test("links lead to http, https and mailto only", () => {
  for (const address of [
    "javascript:alert(1)",
    " javascript:alert(1)",
    "JAVA\tSCRIPT:x",
    "data:text/html,x",
    "file:///etc/passwd",
    "vbscript:x",
    "/relative",
    "blob:http://x/y",
  ]) {
    assert.equal(safe(address, "127.0.0.1:1"), undefined, address);
  }
  assert.equal(safe("https://example.com/a b", ""), "https://example.com/a%20b");
  assert.equal(safe("mailto:kim@example.com", ""), "mailto:kim@example.com");
});

test("a link to a port of this machine gets no cookie of this page", () => {
  assert.equal(safe("http://127.0.0.1:3000/app", "127.0.0.1:7000"), "http://localhost:3000/app");
  assert.equal(safe("http://localhost:3000/", "127.0.0.1:7000"), "http://localhost:3000/");
  assert.equal(safe("http://localhost:3000/", "localhost:7000"), "http://127.0.0.1:3000/");
  assert.equal(safe("http://127.0.0.1:7000/ui/info", "127.0.0.1:7000"), undefined);
});

test("control characters and changes of the direction are seen", () => {
  assert.equal(visible("\x1b[31mred\x1b[0m\x07"), "red\u2407");
  assert.equal(visible("\x1b]0;title\x07"), "\u241b]0;title\u2407");
  assert.equal(visible("a\u202eb"), "a⟦U+202E⟧b");
  assert.equal(visible("a\u200bb\x9b"), "a⟦U+200B⟧b⟦U+009B⟧");
  assert.equal(visible("👩\u200d💻 tab\tline\n"), "👩\u200d💻 tab\tline\n");
});

test("the address of an editor takes a path and no code", () => {
  assert.equal(editorAddress("vscode://file{path}:{line}", "/a b/ü.rs", 3), "vscode://file/a%20b/%C3%BC.rs:3");
  assert.equal(editorAddress("javascript:{path}", "/a"), undefined);
  assert.equal(editorAddress(null, "/a"), undefined);
});

test("a fragment and its route name the same place", () => {
  const routes: Route[] = [
    { view: "list" },
    { view: "create", host: undefined },
    { view: "create", host: "a" },
    { view: "session", host: "local", id: "k1" },
    { view: "why", host: "local", id: "k1" },
  ];
  for (const route of routes) assert.deepEqual(parse(fragment(route)), route);
  for (const odd of ["#/session", "#/%", "#/x/y", ""]) assert.deepEqual(parse(odd), { view: "list" });
});

test("a difference has the changed lines and a few around them", () => {
  const before = Array.from({ length: 20 }, (_, at) => `line ${at}`);
  const after = before.with(10, "changed").toSpliced(12, 0, "added");
  const lines = changed(before.join("\n"), after.join("\n")).map(({ sign, text }) => sign + text);
  assert.deepEqual(lines, [
    " line 7",
    " line 8",
    " line 9",
    "-line 10",
    "+changed",
    " line 11",
    "+added",
    " line 12",
    " line 13",
    " line 14",
  ]);
  assert.deepEqual(changed("", "new\n"), [{ sign: "+", text: "new" }]);
});

test("a form gives values of the kinds that its schema has", () => {
  const schema = {
    properties: {
      jobs: { type: "integer", default: 4 },
      kind: { enum: ["debug", "release"] },
      clean: { type: "boolean" },
      note: {},
    },
    required: ["kind"],
  };
  const asked = fields(schema, ["kind", "jobs"]);
  assert.deepEqual(
    asked.map(({ name }) => name),
    ["kind", "jobs", "clean", "note"],
  );
  assert.deepEqual(parsed(asked, { jobs: "8", kind: "debug", clean: "true", note: "" }), {
    kind: "debug",
    jobs: 8,
    clean: true,
  });
});

test("a long text is divided at ends of lines, and never within a sign", () => {
  const text = `${"a".repeat(70)}\n`.repeat(20);
  const parts = pieces(text, 100);
  assert.equal(parts.join(""), text);
  assert.ok(parts.every((part) => part.length <= 100 && part.endsWith("\n")));
  const signs = "😀".repeat(99);
  const halves = pieces(`x${signs}`, 50);
  assert.equal(halves.join(""), `x${signs}`);
  assert.ok(halves.every((part) => !/\p{Surrogate}/u.test(part)));
});

test("a short text is whole, and a longer one is cut", () => {
  assert.equal(short("a\u202eb"), "a⟦U+202E⟧b");
  assert.equal(short("abcdef", 3), "abc…");
});
