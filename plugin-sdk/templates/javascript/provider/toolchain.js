// Puts a toolchain into a session's environment.
//
// Each call runs in a new instance: a global does not keep its value between calls.

import { bytes, join, trimmed, wrong } from "./interface.js";

const HOUR = 3_600_000; // milliseconds

export function describe() {
  const setting = (key, summary, required) => ({ key, summary, required });
  return {
    name: "my-plugin",
    version: "0.1.0",
    summary: "puts a toolchain in front of PATH and says which version it is",
    settings: [
      setting("root", "the toolchain's directory, absolute", true),
      setting("bin", "directories below it that go in front of PATH, in this order; default: bin", false),
      setting("version-file", "the file below it that has its version; default: VERSION", false),
      setting("drop", "variables that are taken away, since they would disturb it; default: none", false),
      setting("hours", "after how many hours its version is looked at again; default: 24", false),
    ],
    wants: [{ capability: "file", patterns: ["/**"], reason: "to read the toolchain's version" }],
  };
}

/** Validates the settings. */
function checked(given) {
  const all = (key, otherwise) => given.find((setting) => setting.key === key)?.values ?? otherwise;
  const one = (key, ...otherwise) => {
    const values = all(key, otherwise);
    if (values.length !== 1) throw wrong(key, `must be one value, and has ${values.length}`);
    return values[0];
  };
  const root = one("root");
  if (!root.startsWith("/")) throw wrong("root", `must be an absolute path, and is "${root}"`);
  const bin = all("bin", ["bin"]);
  for (const directory of bin) {
    if (directory === "" || directory.includes(":")) {
      throw wrong("bin", `must be names of directories without a colon, and has "${directory}"`);
    }
  }
  const hours = one("hours", "24");
  if (!/^[0-9]{1,4}$/.test(hours) || Number(hours) < 1 || Number(hours) > 8760) {
    throw wrong("hours", `must be a whole number from 1 to 8760, and is "${hours}"`);
  }
  return { root, bin, versionFile: one("version-file", "VERSION"), drop: all("drop", []), hours: Number(hours) };
}

/** Returns the changes. `host` has the functions of the interface that this plugin imports. */
export function provide(request, host) {
  const { root, bin, versionFile, drop, hours } = checked(request.settings);
  const path = `${root}/${versionFile}`;
  // If the file cannot be read, `read` throws the host's failure, which becomes this call's failure.
  const version = trimmed(host.read(path));
  if (version.length === 0) throw { tag: "failed", val: `there is no version in "${path}"` };
  host.write("info", `the toolchain is at ${root}`);

  const names = new Set(request.environment.map((variable) => variable.name));
  const validFor = hours * HOUR;
  const content = join(bytes(`root = ${root}\nversion = `), version, bytes("\n"));
  return [
    ...drop
      .filter((name) => names.has(name))
      .map((name) => ({
        effect: { tag: "unset", val: { name, reason: `it would disturb the toolchain at ${root}` } },
      })),
    // The entry that is prepended last comes first in PATH.
    ...[...bin].reverse().map((directory) => ({
      effect: { tag: "prepend", val: { name: "PATH", entry: bytes(`${root}/${directory}`) } },
    })),
    { effect: { tag: "set", val: { name: "TOOLCHAIN_ROOT", value: bytes(root) } } },
    // Values are bytes in any encoding.
    { effect: { tag: "set", val: { name: "TOOLCHAIN_VERSION", value: version } }, origin: path, validFor },
    {
      effect: { tag: "file", val: { name: "TOOLCHAIN_CONFIG", fileName: "toolchain.conf", content } },
      origin: path,
      validFor,
    },
  ];
}
