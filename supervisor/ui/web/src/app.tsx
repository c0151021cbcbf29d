/** The page: its beginning, and the parts that each route shows. */
import { effect, signal, useSignal } from "@preact/signals";
import { render, type VNode } from "preact";

import { signedOut } from "./core/api";
import { watchKey } from "./core/key";
import { keys } from "./core/keys";
import { enter, hosts, login, open, type Host } from "./core/login";
import { watchNotices } from "./core/notices";
import { follow, go, route, type Route } from "./core/route";
import { useView } from "./core/view";
import { texts } from "./texts";
import { Banner } from "./view/banner";
import { CommandMachine } from "./view/copy";
import { ConversationView } from "./view/conversation";
import { CreateForm } from "./view/create";
import { KeyList, keyListOpen } from "./view/keys";
import { Lists, step } from "./view/list";
import { SessionHead } from "./view/head";
import { ProblemView } from "./view/problem";
import { Top } from "./view/top";
import { WhyPanels } from "./view/why";

/** The filter of the list. It stays when a session is opened. */
const filter = signal({ text: "", label: "" });

function App(): VNode {
  const now = route.value;
  const readOnly = login.value.state === "in" && login.value.info.read_only;
  const host =
    now.view === "session" || now.view === "why" ? hosts.value.find(({ name }) => name === now.host) : undefined;
  const isList = now.view === "list";
  const known = login.value.state === "in" || hosts.value.length > 0;
  return (
    <div class={`page view-${now.view}`} data-login={login.value.state}>
      <a
        class="skip"
        href="#main"
        onClick={(event) => {
          event.preventDefault();
          document.getElementById("main")?.focus();
        }}
      >
        {texts.skip}
      </a>
      <Top filter={filter} readOnly={readOnly} />
      <Banner again={() => void open()} />
      {known && (
        <div
          class="columns"
          role={isList ? "main" : undefined}
          id={isList ? "main" : undefined}
          tabIndex={isList ? -1 : undefined}
        >
          {isList && <h1 class="unseen">{texts.home}</h1>}
          <Lists hosts={hosts.value} filter={filter.value} open={now} />
          {!isList && (
            <main id="main" tabIndex={-1} class="content">
              <Content now={now} host={host} readOnly={readOnly} />
            </main>
          )}
        </div>
      )}
      <KeyList />
    </div>
  );
}

function Content({ now, host, readOnly }: { now: Route; host: Host | undefined; readOnly: boolean }): VNode {
  if (now.view === "create" && !readOnly) {
    const first = hosts.value.find(({ name }) => name === now.host);
    const ordered = first === undefined ? hosts.value : [first, ...hosts.value.filter((other) => other !== first)];
    return (
      <CreateForm
        hosts={ordered}
        created={(name, id) => go({ view: "session", host: name, id })}
        cancelled={() => go({ view: "list" })}
      />
    );
  }
  if ((now.view === "session" || now.view === "why") && host !== undefined) {
    return <OneSession key={`${host.name} ${now.id}`} host={host} id={now.id} view={now.view} readOnly={readOnly} />;
  }
  return <p class="empty">{texts.noHost}</p>;
}

function OneSession({
  host,
  id,
  view,
  readOnly,
}: {
  host: Host;
  id: string;
  view: "session" | "why";
  readOnly: boolean;
}): VNode {
  const { document: session, trouble } = useView(host, id);
  const problem = useSignal<unknown>(undefined);
  return (
    <CommandMachine.Provider value={host}>
      <SessionHead host={host} id={id} session={session} view={view} readOnly={readOnly} problem={problem} />
      <ProblemView of={problem.value ?? trouble} />
      <div class="pane" hidden={view !== "session"}>
        <ConversationView host={host} id={id} session={session} readOnly={readOnly} problem={problem} />
      </div>
      {view === "why" && (
        <div class="pane why">
          <WhyPanels host={host} id={id} view={session} readOnly={readOnly} />
        </div>
      )}
    </CommandMachine.Provider>
  );
}

/** Binds the keys that count everywhere. */
function bindKeys(): void {
  const readOnly = () => login.value.state === "in" && login.value.info.read_only;
  keys.bind("?", () => (keyListOpen.value = true));
  keys.bind("j", () => step(hosts.value, filter.value, 1));
  keys.bind("k", () => step(hosts.value, filter.value, -1));
  keys.bind("n", () => readOnly() || go({ view: "create", host: undefined }));
  keys.bind("/", () => document.getElementById("filter")?.focus());
  keys.bind("w", () => {
    const now = route.value;
    if (now.view === "session" || now.view === "why") go({ ...now, view: now.view === "why" ? "session" : "why" });
  });
  keys.bind("Escape", () => {
    const now = route.value;
    go(now.view === "why" ? { ...now, view: "session" } : { view: "list" });
  });
}

function begin(): void {
  bindKeys();
  void enter().then(follow);
  // A page that is open already can get the address of a new login.
  addEventListener("hashchange", () => {
    if (location.hash.startsWith("#token=")) void enter();
  });
  // A page that was signed out goes on when another page of the browser signs in.
  watchKey(() => {
    if (login.value.state === "out") void open();
  });
  effect(() => {
    const needing = hosts.value.reduce((sum, { sessions }) => sum + sessions.needing.value, 0);
    document.title = texts.title(needing);
  });
  effect(() => {
    if (signedOut.value !== undefined)
      login.value = { state: "out", why: signedOut.value.detail, hint: signedOut.value.hint ?? undefined };
  });
  watchNotices(hosts);
  effect(() => {
    // What had the focus can be gone in the new view. Then the keyboard continues at its beginning.
    void route.value.view;
    requestAnimationFrame(() => {
      const focused = document.activeElement;
      if (focused === null || focused === document.body || focused.getClientRects().length === 0) {
        document.getElementById("main")?.focus({ preventScroll: true });
      }
    });
  });
  render(<App />, document.getElementById("app")!);
}

begin();
