/** Pages of a browser, and what they did: their console, errors, dialogs and requests. */
import { writeFileSync } from "node:fs";
import { join } from "node:path";

import { check, LIMIT } from "./checks.mjs";

/** Pages of one browser that is signed in once, with the address that `agentctl ui` printed. */
export class Pages {
  said = [];
  errors = [];
  dialogs = [];
  requests = [];
  #signedIn = false;

  constructor(browser, address, token) {
    this.browser = browser;
    this.address = address;
    this.token = token;
  }

  /** Makes another profile, with cookies and a storage of its own. Its pages are watched too. */
  async profile(options = {}) {
    const context = await this.browser.newContext({ locale: "en-GB", timezoneId: "UTC", ...options });
    context.setDefaultTimeout(LIMIT);
    context.on("page", (page) => this.#watch(page));
    context.on("request", (request) => this.requests.push(request.url()));
    return context;
  }

  /**
   * Opens a page of the first profile at a place such as `placeOf(ID)`, and waits until it is signed in. `prepare` gets
   * the page before it has an address.
   */
  open = async (place = "#/", prepare = async () => undefined) => {
    this.context ??= await this.profile();
    const page = await this.context.newPage();
    await prepare(page);
    if (this.#signedIn) {
      await page.goto(`${this.address}/${place}`);
    } else {
      await page.goto(`${this.address}/#token=${this.token}`);
      await page.waitForSelector('.page[data-login="in"]');
      this.#signedIn = true;
      // Only the fragment differs, so the page stays.
      await page.goto(`${this.address}/${place}`);
    }
    await page.waitForSelector('.page[data-login="in"]');
    return page;
  };

  #watch(page) {
    page.on("console", (message) => this.said.push(`${page.url()} ${message.type()}: ${message.text()}`));
    page.on("pageerror", (error) => this.errors.push(`${page.url()} ${error.stack ?? error.message}`));
    page.on("dialog", (dialog) => {
      this.dialogs.push(`${page.url()} ${dialog.type()}: ${dialog.message()}`);
      void dialog.dismiss();
    });
  }

  /** Returns the requests that left the server of the page and the origins of the scenario. */
  elsewhere(origins) {
    const own = new Set([this.address, ...origins]);
    return this.requests.filter((url) => /^(https?|wss?):/.test(url) && !own.has(new URL(url).origin));
  }

  /** Fails if a page had an error or a dialog, or asked another server. */
  checkQuiet(origins) {
    check("errors of the pages", this.errors, []);
    check("dialogs of the pages", this.dialogs, []);
    check("requests to other servers", this.elsewhere(origins), []);
  }

  /** Writes pictures of all pages, and their consoles, into a directory. */
  async record(directory) {
    writeFileSync(join(directory, "console.log"), [...this.said, ...this.errors, ...this.dialogs, ""].join("\n"));
    let number = 0;
    for (const page of this.browser.contexts().flatMap((context) => context.pages())) {
      number += 1;
      await page.screenshot({ path: join(directory, `page-${number}.png`), timeout: 10_000 }).catch(() => undefined);
      const text = await page.locator("body").innerText({ timeout: 5_000 }).catch(String);
      writeFileSync(join(directory, `page-${number}.txt`), `${page.url()}\n${text}\n`);
    }
  }
}
