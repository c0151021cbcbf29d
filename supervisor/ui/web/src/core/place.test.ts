import assert from "node:assert/strict";
import { test } from "node:test";

import type { Schemas } from "./api";
import { placeFacts, placeWords } from "./place";

type PlaceView = Schemas["PlaceView"];

const states = { queued: "queued", ended: "ended" };
const queued: PlaceView = {
  name: "farm",
  state: "queued",
  reason: "Resources",
  message: "2 jobs are before it",
  job: "17",
};
const running: PlaceView = {
  name: "farm",
  state: "running",
  job: "17",
  host: {
    host: "node7",
    user: "kim",
    uid: 1000,
    home: "/home/kim",
    architecture: "aarch64",
    system: "Linux",
    version: "1",
  },
};

test("a launch in a queue has the job and the words of the engine", () => {
  assert.equal(placeWords(queued, states), "farm (queued, job 17, Resources, 2 jobs are before it)");
  assert.deepEqual(placeFacts(queued), [
    ["engine", "Resources, 2 jobs are before it"],
    ["job", "17"],
  ]);
});

test("a running agent has its host, and its user and home there", () => {
  assert.equal(placeWords(running, states), "farm (node7)");
  assert.deepEqual(placeFacts(running), [
    ["job", "17"],
    ["host", "node7"],
    ["user", "kim (1000)"],
    ["home", "/home/kim"],
    ["system", "Linux, aarch64"],
  ]);
});

test("an ended launch keeps the engine's reason, and a state of a later version has its name", () => {
  assert.equal(placeWords({ ...running, state: "ended", reason: "TIMEOUT" }, states), "farm (ended, TIMEOUT)");
  assert.equal(placeWords({ name: "farm", state: "paused" as PlaceView["state"] }, states), "farm (paused)");
  assert.equal(placeWords({ name: "farm", state: "running" }, states), "farm");
});
