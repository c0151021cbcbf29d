import assert from "node:assert/strict";
import { test } from "node:test";

import { age, took } from "./time";

test("an age has one unit and never a sign", () => {
  assert.deepEqual([-1, 59.4, 60, 7199, 90_000].map(age), ["0 s", "59 s", "1 min", "1 h", "1 d"]);
});

test("a short duration has three digits", () => {
  assert.deepEqual([0.0004, 0.123456, 0.9999, 2.3456].map(took), ["0.4 ms", "123 ms", "1 s", "2.35 s"]);
});
