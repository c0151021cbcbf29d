// Native tests with stand-ins for the host's functions. The .toml files beside this one test the component in
// agentd's sandbox.

import assert from "node:assert/strict";
import { test } from "node:test";

import { bytes } from "../interface.js";
import { provide } from "../toolchain.js";

/** Returns the changes if the machine has these files. */
function provided(settings, { environment = {}, files = {} } = {}) {
  const request = {
    session: { id: "s1", name: null, agent: "demo", directory: "/work", launch: 1 },
    environment: Object.entries(environment).map(([name, value]) => ({ name, value: bytes(value) })),
    settings: Object.entries(settings).map(([key, values]) => ({ key, values })),
  };
  const read = (path) => {
    if (path in files) return files[path];
    throw Object.assign(new Error(path), { payload: { tag: "not-found", val: `there is no "${path}"` } });
  };
  return provide(request, { read, write: () => {} }).map((change) => change.effect);
}

const files = { "/opt/t/VERSION": bytes("1\n") };

test("the first directory is the first on the path", () => {
  const changes = provided({ root: ["/opt/t"], bin: ["a", "b"] }, { files });
  const entries = changes.filter(({ tag }) => tag === "prepend").map(({ val }) => val.entry);
  assert.deepEqual(entries, [bytes("/opt/t/b"), bytes("/opt/t/a")]);
});

test("a version need not be text", () => {
  const version = Uint8Array.of(32, 0x63, 0xe9, 10);
  const changes = provided({ root: ["/opt/t"] }, { files: { "/opt/t/VERSION": version } });
  const set = changes.find(({ tag, val }) => tag === "set" && val.name === "TOOLCHAIN_VERSION");
  assert.deepEqual(set.val.value, Uint8Array.of(0x63, 0xe9));
});

test("only what is there is dropped", () => {
  const settings = { root: ["/opt/t"], drop: ["LD_PRELOAD", "LD_LIBRARY_PATH"] };
  const changes = provided(settings, { files, environment: { LD_PRELOAD: "x" } });
  assert.deepEqual(changes.filter(({ tag }) => tag === "unset").map(({ val }) => val.name), ["LD_PRELOAD"]);
});

test("a setting that is wrong is named", () => {
  for (const [key, values] of [["root", ["t"]], ["bin", ["a:b"]], ["hours", ["0"]], ["version-file", ["a", "b"]]]) {
    assert.throws(
      () => provided({ root: ["/opt/t"], [key]: values }, { files }),
      (thrown) => thrown.tag === "configuration" && thrown.val.key === key,
    );
  }
});

test("a toolchain that is not there is a failure", () => {
  assert.throws(() => provided({ root: ["/opt/t"] }), (thrown) => thrown.payload.tag === "not-found");
});
