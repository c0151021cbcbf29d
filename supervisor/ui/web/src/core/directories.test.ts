import assert from "node:assert/strict";
import { test } from "node:test";

import { above, known, proposals } from "./directories";
import type { SessionBrief } from "./api";

const session = (directory: string) => ({ id: directory, directory, phase: "idle" }) as SessionBrief;

test("directories above one are proposed too, but not the root", () => {
  assert.deepEqual(above("/work/web/src"), ["/work/web", "/work"]);
  assert.deepEqual(above("/work"), []);
});

test("the directories of sessions come first, the newest before others, each once", () => {
  const all = known([session("/a/one"), session("/a/two"), session("/a/one")], ["/home/kim", "", "/a/two"]);
  assert.deepEqual(all, ["/a/one", "/a/two", "/home/kim", "/a", "/home"]);
});

test("proposals begin with the typed text, or else have its words in any place", () => {
  const all = ["/work/web", "/work/api", "/home/web-old"];
  assert.deepEqual(proposals(all, "/work/w"), ["/work/web"]);
  assert.deepEqual(proposals(all, "web"), ["/work/web", "/home/web-old"]);
  assert.deepEqual(proposals(all, "old web"), ["/home/web-old"]);
  assert.deepEqual(proposals(all, "/work/web"), []);
  assert.deepEqual(proposals(all, ""), all);
});

test("a typed path proposes known directories, then the listed ones", () => {
  const known = ["/work/web/deep", "/home/web-old"];
  const listing = { path: "/work/", directories: ["/work/api", "/work/web", "/work/wiki"] };
  assert.deepEqual(proposals(known, "/work/", listing), ["/work/web/deep", "/work/api", "/work/web", "/work/wiki"]);
  // The answer for the longer path is on its way.
  assert.deepEqual(proposals(known, "/work/w", listing), ["/work/web/deep", "/work/web", "/work/wiki"]);
  assert.deepEqual(proposals([], "/work/web", listing), []);
  assert.deepEqual(proposals(known, "old", listing), ["/home/web-old"]);
});

test("without a text the known directories come before those of the home", () => {
  const listing = { path: "", directories: ["/root/a"] };
  assert.deepEqual(proposals(["/work"], "", listing), ["/work", "/root/a"]);
});
