/** A server on another port gets the page's cookie from the browser. The cookie alone opens nothing. */
import { createServer, request } from "node:http";

/** Sends a request as the server on the other port can: with the cookie, and the headers of the page. */
function asPage(address, cookie, method, path) {
  const headers = { cookie, origin: address, "sec-fetch-site": "same-origin", "content-type": "application/json" };
  return new Promise((resolve, reject) => {
    const sent = request(address + path, { method, headers }, (answer) => {
      answer.resume();
      resolve(answer.statusCode);
    });
    sent.on("error", reject).end(method === "GET" ? undefined : "{}");
  });
}

export default async function ({ check, daemon, open, origins, sees, settings }) {
  const cookies = [];
  const other = createServer((asked, response) => {
    cookies.push(asked.headers.cookie ?? "");
    response.setHeader("content-type", "text/html").end("<!doctype html>");
  });
  await new Promise((resolve) => other.listen(0, "127.0.0.1", resolve));
  const address = `http://127.0.0.1:${other.address().port}`;
  origins.push(address);
  const id = await daemon.create();
  const page = await open();
  await page.waitForSelector(`[data-session="${id}"]`);
  const guest = await page.context().newPage();
  await guest.goto(address);
  const name = `agentd-ui-${new URL(settings.address).port}=`;
  const cookie = await sees("the cookie", () => cookies.find((given) => given.includes(name)));
  for (const [method, path] of [
    ["GET", "/ui/info"],
    ["GET", "/host/this/v1/sessions"],
    ["GET", `/host/this/v1/sessions/${id}/events`],
    ["POST", `/host/this/v1/sessions/${id}/stop`],
  ]) {
    check(`${method} ${path} with the cookie alone`, await asPage(settings.address, cookie, method, path), 401);
  }
  check("the session goes on", (await daemon.view(id)).status.phase, "idle");
  other.close();
}
