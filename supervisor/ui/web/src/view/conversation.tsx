/** One session: its conversation, the input and the footer. */
import type { Signal } from "@preact/signals";
import type { VNode } from "preact";
import { useEffect, useMemo, useRef } from "preact/hooks";

import { call, session as path, type Schemas, type SessionView } from "../core/api";
import { keys } from "../core/keys";
import { login, type Host } from "../core/login";
import { look } from "../core/looks";
import { Window } from "../core/window";
import { texts } from "../texts";
import { AppletPane, useApplet } from "./applet";
import { ConnectionState } from "./connection";
import { Footer } from "./footer";
import { Input } from "./input";
import { Log } from "./log";
import type { Reply } from "./question";

interface Props {
  host: Host;
  id: string;
  session: SessionView | undefined;
  readOnly: boolean;
  problem: Signal<unknown>;
}

export function ConversationView({ host, id, session, readOnly, problem }: Props): VNode {
  const part = useMemo(() => new Window(host.base, id), [host, id]);
  useEffect(() => () => part.close(), [part]);
  // A stream that was refused while the page was signed out begins again.
  const signedIn = login.value.state === "in";
  useEffect(() => {
    if (signedIn) part.retry();
  }, [signedIn, part]);
  useObserved(host, id, part, readOnly);
  const applet = useApplet(host, id, session, readOnly);
  const reply = readOnly ? undefined : replyTo(host, id, problem);
  const open = session?.status.permissions.at(0);
  useAnswerKeys(open, reply, () => part.newest());
  return (
    <div class={`conversation ${applet.shown === undefined ? "" : "beside"}`}>
      <section class="talk" aria-label={texts.conversation.region}>
        <Log part={part} session={session} reply={reply} since={useMemo(() => look(host.base, id)?.seq, [host, id])} />
        <ConnectionState of={part.connection} heard={part.heard} retry={() => part.retry()} />
        {!readOnly && (
          <Input
            host={host}
            id={id}
            session={session}
            problem={problem}
            commands={part.conversation.side.commands}
            sent={() => part.newest()}
          />
        )}
        <Footer host={host} session={session} show={applet.show} />
      </section>
      {applet.shown !== undefined && <AppletPane applet={applet} />}
    </div>
  );
}

/** Milliseconds for which a new question ignores keys, so that a key for something else answers nothing. */
const SETTLED = 500;

/** Binds the digits to the answers of a question. They answer only a question whose answers are in view. */
function useAnswerKeys(
  open: Schemas["PermissionRequest"] | undefined,
  reply: Reply | undefined,
  find: () => void,
): void {
  useEffect(() => {
    if (reply === undefined || open === undefined || open.elicitation?.mode === "form") return;
    const since = Date.now();
    const answer = (option: string) => {
      const answers = document.querySelector(`[data-permission="${CSS.escape(open.id)}"] .answers`);
      const view = answers?.closest(".scroller")?.getBoundingClientRect();
      if (answers === null || view === undefined) return find();
      const { top, bottom } = answers.getBoundingClientRect();
      if (top < view.top || bottom > view.bottom) return answers.scrollIntoView({ block: "nearest" });
      if (Date.now() - since >= SETTLED) reply(open.id, { option });
    };
    const digits = open.options.slice(0, 9).map(({ id }, index) => keys.bind(String(index + 1), () => answer(id)));
    return () => digits.forEach((unbind) => unbind());
  }, [open?.id, reply === undefined]);
}

function replyTo(host: Host, id: string, problem: Signal<unknown>): Reply {
  return (permission, answer) => {
    problem.value = undefined;
    call(host.base, "post", path(id, `/permissions/${encodeURIComponent(permission)}`), answer).catch(
      (error: unknown) => (problem.value = error),
    );
  };
}

/** Notes what the person sees: in the browser for what is unread, and at the daemon that somebody looked. */
function useObserved(host: Host, id: string, part: Window, readOnly: boolean): void {
  const version = part.version.value;
  const said = useRef(0);
  useEffect(() => {
    const seen = () => {
      const last = part.conversation.items.at(-1);
      if (document.visibilityState !== "visible" || last === undefined || !part.follows) return;
      host.sessions.look(id, part.conversation.last, part.conversation.time);
      if (readOnly || Date.now() - said.current < 60_000) return;
      said.current = Date.now();
      // Only for `agentctl`'s last look. A failure changes nothing for the person here.
      call(host.base, "post", path(id, "/observed")).catch(() => undefined);
    };
    seen();
    document.addEventListener("visibilitychange", seen);
    return () => document.removeEventListener("visibilitychange", seen);
  }, [version, part]);
}
