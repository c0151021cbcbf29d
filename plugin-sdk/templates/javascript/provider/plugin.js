// my-plugin: the component's exports, connected to the host's functions. The logic is in toolchain.js, which
// `node --test` can run.

import { read } from "agentd:plugin/file@1.0.0";
import { write } from "agentd:plugin/log@1.0.0";

import { told } from "./interface.js";
import { describe, provide } from "./toolchain.js";

export const environmentProvider = {
  describe,
  provide: (request) => told(write, () => provide(request, { read, write })),
};
