// my-plugin: the component's exports, connected to the host's functions. The logic is in reachable.js, which
// `node --test` can run.

import { write } from "agentd:plugin/log@1.0.0";
import { exchange } from "agentd:plugin/network@1.0.0";

import { told } from "./interface.js";
import { check, describe } from "./reachable.js";

export const prerequisiteCheck = {
  describe,
  check: (request) => told(write, () => check(request, { exchange })),
};
