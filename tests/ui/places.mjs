/** The places of sessions: the choice in the form, a launch in a queue, and an agent that runs on its place. */
import { placeOf } from "./daemon.mjs";

export default async function ({ check, daemon, open, sees, settings }) {
  const page = await open("#/create");
  const form = page.locator("form.creation");
  const choice = form.getByLabel("Place", { exact: true });
  const offered = async () => (await choice.locator("option").allTextContents()).map((text) => text.split(" (")[0]);
  await sees("the places of the form", offered, ["as configured", "this machine", "busy", "near"]);
  await form.getByRole("combobox", { name: "Directory", exact: true }).fill(settings.spec.directory);
  await form.getByLabel("Agent", { exact: true }).selectOption("scripted");
  await choice.selectOption("near");
  await form.getByLabel("First prompt").fill("say from the place");
  await form.getByRole("button", { name: "Create the session" }).click();
  await page.waitForURL(/#\/session\/this\//);
  const id = page.url().split("/").at(-1);
  await page.locator(".item.text", { hasText: "from the place" }).waitFor();
  const { spec, status } = await daemon.view(id);
  const { host } = status.place;
  check("the place of the session", [spec.place, status.place.name, status.place.state], ["near", "near", "running"]);

  const fact = (name) => page.locator(`[data-fact="${name}"] dd`);
  const row = (session) => page.locator(`[data-session="${session}"] .place`);
  await sees("the place in the list", () => row(id).allTextContents(), ["on near"]);
  await page.locator(".head .facts", { hasText: `on near (${host.host})` }).waitFor();
  await page.getByRole("link", { name: "Why" }).click();
  await sees("the place of the panel", () => fact("place").textContent(), "near running");
  check("the host", await fact("place-host").textContent(), host.host);
  check("the user there", await fact("place-user").textContent(), `${host.user} (${host.uid})`);
  check("the home there", await fact("place-home").textContent(), host.home);
  check("the system there", await fact("place-system").textContent(), `${host.system}, ${host.architecture}`);
  check("the engine has said nothing", await fact("place-engine").count(), 0);

  // A launch waits in the queue of its engine, which says why.
  const waiting = (await daemon.document("POST", "/v1/sessions", { ...settings.spec, place: "busy" })).id;
  await page.goto(`${page.url().split("#")[0]}${placeOf(waiting)}`);
  const queued = "on busy (queued, job 17, two jobs are before it)";
  await page.locator(".head .facts", { hasText: queued }).waitFor();
  await sees("the other place in the list", () => row(waiting).allTextContents(), ["on busy"]);
  await page.getByRole("link", { name: "Why" }).click();
  await sees("the state of the queue", () => fact("place").textContent(), "busy queued");
  check("the words of the engine", await fact("place-engine").textContent(), "two jobs are before it");
  check("the job", await fact("place-job").textContent(), "17");
  check("no host is known", await fact("place-host").count(), 0);
  await page.getByLabel("Filter sessions").fill("busy");
  await sees("the sessions of a place", () => page.locator("[data-session]").count(), 1);
}
