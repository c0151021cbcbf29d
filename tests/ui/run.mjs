/**
 * Plays a scenario of this directory in Debian's Chromium: `node run.mjs SCENARIO`. The tests in tests/it/ui/browser
 * start it.
 *
 * A scenario is a module `SCENARIO.mjs` with a default function. It gets the tools below, and asks the test program
 * for what a page cannot do, such as killing the daemon. A failure is printed, with pictures and consoles of the pages
 * in the test's directory, and the exit status is 1.
 */
import { createRequire } from "node:module";
import { join } from "node:path";

import { check, LIMIT, sees } from "./checks.mjs";
import { daemonOf } from "./daemon.mjs";
import { Pages } from "./pages.mjs";
import { ask } from "./wire.mjs";

const ARGUMENTS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-sync",
  // A name of another site that leads to this machine.
  "--host-resolver-rules=MAP rebound.test 127.0.0.1",
];

// The test program has ended, and with it every reader of an answer. Playwright ends the browser with this process.
process.stdin.on("end", () => process.exit(1));

const settings = await ask("settings");
const require = createRequire(join(settings.modules, "package.json"));
const { chromium } = require("playwright-core");
const { default: scenario } = await import(new URL(`${process.argv[2]}.mjs`, import.meta.url));

const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ARGUMENTS, timeout: LIMIT });
const pages = new Pages(browser, settings.address, settings.token);
/** Origins besides the page's own that the scenario reaches on purpose. */
const origins = [];
try {
  await scenario({
    ask,
    browser,
    check,
    daemon: daemonOf(ask, settings.spec),
    open: pages.open,
    origins,
    pages,
    require,
    sees,
    settings,
  });
  pages.checkQuiet(origins);
} catch (error) {
  console.error(error);
  await pages.record(settings.directory);
  process.exitCode = 1;
}
await browser.close();
process.exit();
