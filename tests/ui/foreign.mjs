/** Pages of other servers that try the port, with and without the cookie, another name of this machine, and a token. */
import { createServer } from "node:http";

const HTML = "<!doctype html><title>another page</title>";

/** Tries everything that a page can do to another server. Returns what it could see, by the name of the attempt. */
async function attack({ target, token }) {
  const outcome = {};
  const paths = ["/ui/info", "/host/this/v1/sessions", "/host/this/v1/events", "/"];
  const body = JSON.stringify({ token, prompt: "foreign", directory: "/", agent: "scripted" });
  const requests = [
    ...paths.map((path) => [path, { method: "GET" }]),
    ["/ui/login", { method: "POST", body }],
    ["/host/this/v1/sessions", { method: "POST", body }],
    ["/host/this/v1/sessions", { method: "POST", body, headers: { "content-type": "application/json" } }],
  ];
  for (const mode of ["cors", "no-cors"]) {
    for (const [path, request] of requests) {
      const seen = await fetch(target + path, { ...request, mode, credentials: "include" }).then(
        async (answer) => `${answer.type} ${answer.status} ${await answer.text()}`,
        (error) => error.name,
      );
      outcome[`${mode} ${request.method} ${path} ${request.headers ? "as JSON" : ""}`] = seen;
    }
  }
  const element = (tag, attributes) =>
    new Promise((resolve) => {
      const made = Object.assign(document.createElement(tag), attributes);
      made.onload = () => resolve("loaded");
      made.onerror = () => resolve("error");
      document.body.append(made);
    });
  for (const path of ["/ui/info", "/host/this/v1/sessions", "/"]) {
    outcome[`script ${path}`] = await element("script", { src: target + path });
    outcome[`style ${path}`] = await element("link", { rel: "stylesheet", href: target + path });
    outcome[`image ${path}`] = await element("img", { src: target + path });
  }
  await element("iframe", { src: `${target}/` });
  return outcome;
}

/** Checks that the attacks of a page see nothing. */
async function tries(page, address, { check, settings }) {
  await page.goto(address);
  const outcome = await page.evaluate(attack, { target: settings.address, token: settings.token });
  const seen = Object.entries(outcome).filter(([, what]) => what !== "TypeError" && what !== "error");
  check(`what ${address} sees`, seen, []);
  const texts = await Promise.all(
    page
      .frames()
      .slice(1)
      .map((frame) => frame.locator("#app").count()),
  );
  check("the page in a frame", texts, [0]);
  // A form needs no script, and its answer takes the place of the page.
  const answers = [];
  page.on("response", (response) => answers.push([response.request().method(), response.status()]));
  await page.evaluate((target) => {
    const form = document.createElement("form");
    Object.assign(form, { action: `${target}/host/this/v1/prune`, method: "post", enctype: "text/plain" });
    document.body.append(form);
    form.submit();
  }, settings.address);
  await page.waitForURL(`${settings.address}/**`);
  check("the answer to a form", answers[0], ["POST", 403]);
}

export default async function (tools) {
  const { check, daemon, open, origins, pages, settings } = tools;
  const cookies = [];
  const other = createServer((request, response) => {
    cookies.push(request.headers.cookie ?? "");
    response.setHeader("content-type", "text/html").end(HTML);
  });
  await new Promise((resolve) => other.listen(0, resolve));
  const { port } = other.address();
  const own = new URL(settings.address).port;
  const names = ["127.0.0.1", "localhost"];
  const rebound = `http://rebound.test:${own}`;
  origins.push(...names.map((name) => `http://${name}:${port}`), `http://localhost:${own}`, rebound);

  // Without the cookie, before anybody has signed in. The token of these attacks stays unused.
  const stranger = await pages.profile();
  for (const name of names) await tries(await stranger.newPage(), `http://${name}:${port}/`, tools);
  const id = await daemon.create();
  const page = await open();
  await page.waitForSelector(`[data-session="${id}"]`);
  for (const name of names) await tries(await page.context().newPage(), `http://${name}:${port}/`, tools);
  check(
    "the server beside gets the cookie",
    cookies.some((cookie) => cookie.includes(`agentd-ui-${own}=`)),
    true,
  );
  const { sessions } = await daemon.document("GET", "/v1/sessions");
  check(
    "the sessions",
    sessions.map((session) => session.id),
    [id],
  );

  // A name of another site that leads to this machine, and the other own name, which has no cookie.
  const visitor = await page.context().newPage();
  for (const path of ["/", "/ui/info", "/host/this/v1/sessions"]) {
    check(`another name: ${path}`, (await visitor.goto(rebound + path)).status(), 403);
  }
  await visitor.goto(`http://localhost:${own}/`);
  await visitor.waitForSelector('.page[data-login="out"]');
  check("sessions without the cookie", await visitor.locator("[data-session]").count(), 0);

  // The token was used. Another browser gets in no more, and the first one stays in.
  const late = await stranger.newPage();
  await late.goto(`${settings.address}/#token=${settings.token}`);
  await late.locator(".banner", { hasText: "This page is signed out." }).waitFor();
  check("the address without the token", new URL(late.url()).hash, "#/");
  check("cookies of the other browser", await stranger.cookies(), []);
  check("sessions in the other browser", await late.locator("[data-session]").count(), 0);
  const again = await page.context().newPage();
  await again.goto(`${settings.address}/#token=${settings.token}`);
  await again.waitForSelector(`[data-session="${id}"]`);
  other.close();
}
