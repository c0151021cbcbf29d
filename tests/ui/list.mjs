/** The list of sessions: a late answer, what counts as unread, and typed text over a reload. */
import { placeOf } from "./daemon.mjs";

export default async function ({ check, daemon, open, sees }) {
  const first = await daemon.create();
  await daemon.prompt(first, "say old news");
  await daemon.settled(first);

  // The list of titles is answered, but its answer arrives late.
  let release;
  const released = new Promise((resolve) => (release = resolve));
  const answered = [];
  const page = await open("#/", (fresh) =>
    fresh.route(
      (url) => url.pathname.endsWith("/v1/sessions"),
      async (route) => {
        const response = await route.fetch();
        answered.push((await response.json()).sessions.map(({ id }) => id));
        await released;
        await route.fulfill({ response });
      },
    ),
  );
  const row = (id) => page.locator(`[data-session="${id}"]`);
  await row(first).waitFor();
  await sees("the answer that is late", () => answered, [[first]]);
  const second = await daemon.create();
  await row(second).waitFor();
  check("a name before the answer", await row(first).locator(".name").textContent(), first);
  release();
  await sees("the title of the late answer", () => row(first).locator(".name").textContent(), "say old news");
  check("both sessions", await page.locator("[data-session]").count(), 2);
  check("nothing is unread at first", await page.locator(".unread").count(), 0);

  await daemon.prompt(second, "say fresh news");
  await sees("the news", () => row(second).getAttribute("class"), "session unread");
  await page.reload();
  await sees("the news after a reload", () => page.locator(".unread").getAttribute("data-session"), second);
  await row(second).click();
  await page.locator(".item.text", { hasText: "fresh news" }).waitFor();
  await sees("no news", () => page.locator(".unread").count(), 0);

  const input = page.locator("form.input textarea");
  await input.fill("half of a thought");
  await page.reload();
  await input.waitFor();
  check("the typed text after a reload", await input.inputValue(), "half of a thought");
  await page.goto(`${page.url().split("#")[0]}${placeOf(first)}`);
  await sees("another session has no text", () => input.inputValue(), "");
  await page.reload();
  await row(first).waitFor();
  check("nothing is unread at last", await page.locator(".unread").count(), 0);
}
