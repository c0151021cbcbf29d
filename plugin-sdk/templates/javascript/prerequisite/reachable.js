// Checks that a server can be reached.
//
// Each call runs in a new instance: a global does not keep its value between calls.

import { failure, wrong } from "./interface.js";

export function describe() {
  const setting = (key, summary, required) => ({ key, summary, required });
  return {
    plugin: {
      name: "my-plugin",
      version: "0.1.0",
      summary: "checks that a server can be reached",
      settings: [
        setting("host", "the server's name or address", true),
        setting("port", "its TCP port", true),
        setting("time", "how many milliseconds it may take to answer; default: 2000", false),
        setting("remedy", "what the user can do where it does not answer; default: nothing is said", false),
      ],
      wants: [{ capability: "network", patterns: ["*:*"], reason: "to connect to the server that the settings name" }],
    },
    moment: "before-environment",
  };
}

/** Validates the settings. */
function checked(given) {
  const one = (key, ...otherwise) => {
    const values = given.find((setting) => setting.key === key)?.values ?? otherwise;
    if (values.length !== 1) throw wrong(key, `must be one value, and has ${values.length}`);
    return values[0];
  };
  const number = (key, most, ...otherwise) => {
    const text = one(key, ...otherwise);
    if (!/^[0-9]{1,5}$/.test(text) || Number(text) < 1 || Number(text) > most) {
      throw wrong(key, `must be a whole number from 1 to ${most}, and is "${text}"`);
    }
    return Number(text);
  };
  const host = one("host");
  if (host === "") throw wrong("host", "must not be empty");
  const remedy = given.some((setting) => setting.key === "remedy") ? one("remedy") : undefined;
  return { host, port: number("port", 65535), time: number("time", 60000, "2000"), remedy };
}

/** Returns the report. `host` has the functions of the interface that this plugin imports. */
export function check(request, host) {
  const settings = checked(request.settings);
  const server = `${settings.host}:${settings.port}`;
  const fails = (summary) => ({ outcome: "fail", summary, facts: [], remedy: settings.remedy });
  try {
    // An exchange without steps only connects.
    const { address, connected } = host.exchange(settings.host, settings.port, [], settings.time);
    const facts = [{ name: "address", value: address }, { name: "connected after", value: `${connected} ms` }];
    return { outcome: "pass", summary: `${server} answers`, facts };
  } catch (error) {
    const { tag, val } = failure(error);
    switch (tag) {
      case "no-such-host": return fails(`there is no host "${settings.host}"`);
      case "refused": return fails(`no server listens at ${server}`);
      case "unreachable": return fails(`there is no route to ${server}`);
      case "timed-out": return fails(`${server} did not answer within ${settings.time} ms`);
      case "not-resolved":
        return {
          outcome: "unknown",
          summary: `the address of "${settings.host}" cannot be determined: ${val}`,
          facts: [],
        };
      case "other": throw val; // return the host's failure unchanged
      default: throw error;
    }
  }
}
