/**
 * Builds the page into ../dist: `node build.mjs`.
 *
 * `--out DIR` writes elsewhere. `--tests` builds the unit tests into node_modules/.tests instead.
 * The same sources give the same bytes, so that `.ci/ui --check` can compare them.
 */
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const args = process.argv.slice(2);
const option = (name) => (args.includes(name) ? args[args.indexOf(name) + 1] : undefined);
const common = { absWorkingDir: here, bundle: true, charset: "utf8", jsx: "automatic", jsxImportSource: "preact" };

/** Most bytes of the first load after compression, as issue 22 and `.ci/ui` have it. */
const MOST = 150_000;

/** Builds each file *.test.ts into a program for node's own test runner. */
async function tests() {
  const found = readdirSync(join(here, "src"), { recursive: true }).filter((name) => /\.test\.tsx?$/.test(name));
  rmSync(join(here, "node_modules/.tests"), { recursive: true, force: true });
  await build({
    ...common,
    entryPoints: found.sort().map((name) => join("src", name)),
    outdir: "node_modules/.tests",
    outExtension: { ".js": ".mjs" },
    platform: "node",
    format: "esm",
    target: "node20",
  });
}

/** Returns the licence texts of the packages in the bundle, which their terms want beside each copy. */
function licences(inputs) {
  const names = new Set();
  for (const path of inputs) {
    const match = /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(path);
    if (match) names.add(match[1]);
  }
  return [...names].sort().map((name) => {
    const folder = join(here, "node_modules", name);
    const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    const file = readdirSync(folder)
      .sort()
      .find((entry) => /^licen[cs]e/i.test(entry));
    const text = file === undefined ? license : readFileSync(join(folder, file), "utf8").trim();
    return `${name} ${version}\n\n${text}`;
  });
}

/** Writes the page. Returns the names and the compressed sizes of its files. */
async function page(out) {
  const result = await build({
    ...common,
    entryPoints: { app: "src/app.tsx", style: "src/style.css" },
    outdir: "out",
    write: false,
    minify: true,
    metafile: true,
    platform: "browser",
    format: "esm",
    target: "es2022",
    legalComments: "none",
    logLevel: "warning",
  });
  const output = (name) => Buffer.from(result.outputFiles.find((file) => file.path.endsWith(name)).contents);
  const terms = licences(Object.keys(result.metafile.inputs)).join("\n\n---\n\n");
  const notice = `\n/*!\n${terms.replaceAll("*/", "* /")}\n*/\n`;
  const files = new Map();
  const add = (name, kind, bytes) => {
    const digest = createHash("sha256").update(bytes).digest("hex").slice(0, 16);
    files.set(`${name}-${digest}.${kind}`, bytes);
    return `/assets/${name}-${digest}.${kind}`;
  };
  const html = readFileSync(join(here, "src/index.html"), "utf8")
    .replace("APP.js", add("app", "js", Buffer.concat([output("app.js"), Buffer.from(notice)])))
    .replace("APP.css", add("app", "css", output("style.css")))
    .replace("ICON.svg", add("icon", "svg", readFileSync(join(here, "src/icon.svg"))));
  files.set("index.html", Buffer.from(html));
  mkdirSync(out, { recursive: true });
  for (const name of readdirSync(out)) if (!files.has(name)) rmSync(join(out, name), { recursive: true });
  for (const [name, bytes] of files) {
    if (!existsSync(join(out, name)) || !readFileSync(join(out, name)).equals(bytes))
      writeFileSync(join(out, name), bytes);
  }
  return [...files].map(([name, bytes]) => [name, gzipSync(bytes, { level: 9 }).length]);
}

if (args.includes("--tests")) {
  await tests();
} else {
  const sizes = await page(option("--out") ?? join(here, "../dist"));
  const sum = sizes.reduce((total, [, size]) => total + size, 0);
  for (const [name, size] of sizes) console.log(`${String(size).padStart(7)}  ${name}`);
  console.log(`${String(sum).padStart(7)}  in all, compressed`);
  if (sum > MOST) {
    console.error(`the first load is larger than ${MOST} bytes`);
    process.exit(1);
  }
}
