/** A read-only page: it shows everything, offers no change, and its server refuses all of them. */
import { placeOf } from "./daemon.mjs";
import { sameAsJournal } from "./transcript.mjs";

export default async function ({ check, daemon, open, sees, settings }) {
  const id = await daemon.create();
  await daemon.prompt(id, "say before\nask");
  const page = await open(placeOf(id));
  await page.locator(".question.open").waitFor();
  await sameAsJournal(page, daemon, id);
  const changing = "textarea, .head button, .answers button, .queue button, .top .primary";
  check("controls that change something", await page.locator(changing).count(), 0);
  const before = (await daemon.journal(id)).length;
  for (const key of ["1", "x", "i", "n"]) await page.keyboard.press(key);
  check("the page after keys", new URL(page.url()).hash, placeOf(id));

  // A request of the page itself becomes a change on its way, so it has everything that the server asks for.
  const changes = [
    ["POST", `/v1/sessions/${id}/stop`],
    ["POST", `/v1/sessions/${id}/prompt`],
    ["DELETE", `/v1/sessions/${id}?force`],
    ["PATCH", `/v1/sessions/${id}/context`],
    ["POST", "/v1/sessions"],
  ];
  const answers = [];
  const isView = (url) => url.pathname === `/host/this/v1/sessions/${id}`;
  await page.route(isView, async (route) => {
    const headers = await route.request().allHeaders();
    for (const [method, path] of changes.splice(0)) {
      const answer = await route.fetch({
        url: `${settings.address}/host/this${path}`,
        method,
        headers: { ...headers, origin: settings.address, "content-type": "application/json" },
        postData: JSON.stringify({ prompt: "say changed", directory: "/" }),
      });
      answers.push([method, path, answer.status(), (await answer.json()).code]);
    }
    await route.continue();
  });
  const wanted = changes.map(([method, path]) => [method, path, 403, "ui.read_only"]);
  await page.reload();
  await page.locator(".question.open").waitFor();
  await sees("the answers of the server", () => answers, wanted);
  check("records of the session", (await daemon.journal(id)).length, before);
  await page.goto(`${settings.address}/#/create`);
  await page.waitForSelector('.page[data-login="in"]');
  check("the form", await page.locator("form").count(), 0);
}
