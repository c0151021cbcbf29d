/**
 * A stream that is dead while the page looks alive: a forwarder keeps its connections open, and passes nothing on. The
 * page misses the heartbeats, which takes 35 s, and then gets everything once by new connections.
 */
import { createServer, connect } from "node:net";

import { placeOf } from "./daemon.mjs";
import { sameAsJournal } from "./transcript.mjs";

/** A SOCKS proxy (RFC 1928) to this machine, whose connections can become silent. */
class Forwarder {
  #pairs = new Set();
  #server = createServer((client) => this.#accept(client));

  /** Begins to listen, and returns the address for a browser. */
  async listen() {
    await new Promise((resolve) => this.#server.listen(0, "127.0.0.1", resolve));
    return `socks5://127.0.0.1:${this.#server.address().port}`;
  }

  /** Passes nothing on any more by the connections of now. Returns their number. */
  silence() {
    for (const pair of this.#pairs) pair.silent = true;
    return this.#pairs.size;
  }

  close() {
    this.#server.close();
    for (const { client, server } of this.#pairs) for (const end of [client, server]) end.destroy();
  }

  #accept(client) {
    client.on("error", () => client.destroy());
    // The greeting, and then a request that ends with the port.
    client.once("data", () => {
      client.write(Buffer.from([5, 0]));
      client.once("data", (request) => {
        const server = connect(request.readUInt16BE(request.length - 2), "127.0.0.1");
        server.once("connect", () => client.write(Buffer.from([5, 0, 0, 1, 127, 0, 0, 1, 0, 0])));
        this.#join({ client, server, silent: false });
      });
    });
  }

  #join(pair) {
    this.#pairs.add(pair);
    const ends = [pair.client, pair.server];
    ends.forEach((end, index) => {
      const other = ends[1 - index];
      end.on("data", (data) => pair.silent || other.write(data));
      end.on("error", () => other.destroy());
      end.on("close", () => {
        other.destroy();
        this.#pairs.delete(pair);
      });
    });
  }
}

export default async function ({ check, daemon, open, pages, sees }) {
  const forwarder = new Forwarder();
  // Browsers ask no proxy for the loopback unless they must.
  pages.context = await pages.profile({ proxy: { server: await forwarder.listen(), bypass: "<-loopback>" } });
  const id = await daemon.create();
  const page = await open(placeOf(id));
  const states = () => page.$$eval("[data-state]", (parts) => parts.map((part) => part.dataset.state));
  await sees("the list and the conversation are live", states, ["live", "live"]);
  await daemon.prompt(id, "say heard");
  await page.locator(".item.text", { hasText: "heard" }).waitFor();
  await daemon.settled(id);
  await sameAsJournal(page, daemon, id);

  const silenced = forwarder.silence();
  check(`both streams are silent: ${silenced}`, silenced >= 2, true);
  await daemon.prompt(id, "say missed");
  await daemon.settled(id);
  check("the page looks alive", await states(), ["live", "live"]);
  await page.locator('[data-marker="gap"]').waitFor();
  await sees("the list and the conversation are live again", states, ["live", "live"]);
  await page.locator(".item.text", { hasText: "missed" }).waitFor();
  await sameAsJournal(page, daemon, id);
  const said = pages.said.length;
  await daemon.prompt(id, "say heard again");
  await page.locator(".item.text", { hasText: "heard again" }).waitFor();
  check("what the browser says meanwhile", pages.said.slice(said), []);
  await page.close();
  forwarder.close();
}
