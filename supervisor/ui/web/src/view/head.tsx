/** The head of a session: its name and state, and what can be done with it. */
import { useSignal, type Signal } from "@preact/signals";
import type { ComponentChild, VNode } from "preact";
import { useEffect, useRef } from "preact/hooks";

import { call, session as path, type SessionView } from "../core/api";
import { attention, isOver } from "../core/groups";
import type { Host } from "../core/login";
import { placeWords } from "../core/place";
import { fragment, go } from "../core/route";
import { short } from "../core/text";
import { texts } from "../texts";

interface Props {
  host: Host;
  id: string;
  session: SessionView | undefined;
  view: "session" | "why";
  readOnly: boolean;
  /** The last failure of an action. */
  problem: Signal<unknown>;
}

export function SessionHead({ host, id, session, view, readOnly, problem }: Props): VNode {
  const brief = host.sessions.all.value.get(id);
  const name = session?.spec.name ?? session?.status.title ?? (brief && host.sessions.name(brief)) ?? id;
  const title = session?.spec.name ? session.status.title : undefined;
  const phase = brief?.phase ?? session?.status.phase;
  const need = brief && attention(brief);
  const place = (to: "session" | "why") => fragment({ view: to, host: host.name, id });
  return (
    <header class="head">
      <div class="line">
        <a class="back" href={fragment({ view: "list" })} aria-label={texts.head.back}>
          ‹
        </a>
        <h1>
          <bdi>{short(name)}</bdi>
        </h1>
        {phase !== undefined && (
          <span class={`badge ${need === undefined ? phase : "needed"}`} data-phase={phase}>
            {need === undefined ? texts.phase(phase) : texts.reason(need)}
          </span>
        )}
        <span class="spring" />
        <nav class="tabs">
          <a href={place("session")} aria-current={view === "session" ? "page" : undefined}>
            {texts.head.conversation}
          </a>
          <a href={place("why")} aria-current={view === "why" ? "page" : undefined}>
            {texts.head.why}
          </a>
        </nav>
        {!readOnly && <Actions host={host} id={id} name={name} over={isOver(phase)} problem={problem} />}
      </div>
      <p class="facts">
        {title && (
          <span class="title">
            <bdi>{short(title)}</bdi>
          </span>
        )}
        <Facts session={session} />
      </p>
      {session?.status.message && (
        <p class="message">
          <bdi>{short(session.status.message, 1_000)}</bdi>
        </p>
      )}
    </header>
  );
}

function Facts({ session }: { session: SessionView | undefined }): VNode | null {
  if (session === undefined) return null;
  const { status, spec } = session;
  const { context_used: used, context_size: size } = status.usage ?? {};
  const facts: ComponentChild[] = [
    status.agent?.name ?? spec.agent ?? spec.command?.[0]?.split("/").at(-1),
    status.model,
    status.mode,
    spec.directory,
    status.place ? texts.at(placeWords(status.place, texts.places)) : undefined,
    used ? texts.head.tokens(used, size) : undefined,
    status.cost ? texts.head.cost(status.cost.amount, status.cost.currency) : undefined,
    status.progress ? texts.head.progress(status.progress.message, status.progress.percent) : undefined,
  ];
  return (
    <>
      {facts.filter(Boolean).map((fact, index) => (
        <span key={index}>
          <bdi>{short(String(fact))}</bdi>
        </span>
      ))}
    </>
  );
}

interface ActionsProps {
  host: Host;
  id: string;
  name: string;
  over: boolean;
  problem: Signal<unknown>;
}

function Actions({ host, id, name, over, problem }: ActionsProps): VNode {
  const busy = useSignal(false);
  const removing = useSignal(false);
  const act = async (run: Promise<unknown>): Promise<boolean> => {
    problem.value = undefined;
    busy.value = true;
    try {
      await run;
      return true;
    } catch (error) {
      problem.value = error;
      return false;
    } finally {
      busy.value = false;
    }
  };
  const resume = (query = "") => void act(call(host.base, "post", path(id, `/resume${query}`)));
  const remove = async () => {
    removing.value = false;
    if (await act(call(host.base, "delete", path(id, over ? "" : "?force")))) go({ view: "list" });
  };
  return (
    <div class="actions" aria-busy={busy.value}>
      {!over && (
        <button
          type="button"
          disabled={busy.value}
          onClick={() => void act(call(host.base, "post", path(id, "/stop")))}
        >
          {texts.head.stop}
        </button>
      )}
      {over && (
        <button type="button" class="primary" disabled={busy.value} onClick={() => resume()}>
          {texts.head.resume}
        </button>
      )}
      {over && (
        <details class="menu">
          <summary aria-label={texts.head.otherWays}>⋯</summary>
          <div>
            <button type="button" onClick={() => resume("?new_conversation")}>
              {texts.head.resumeNew}
            </button>
            <button type="button" onClick={() => resume("?degraded")}>
              {texts.head.resumeDegraded}
            </button>
            <button type="button" onClick={() => resume("?force")}>
              {texts.head.resumeForced}
            </button>
          </div>
        </details>
      )}
      <button type="button" disabled={busy.value} onClick={() => (removing.value = true)}>
        {texts.head.remove}
      </button>
      <Confirm
        open={removing}
        title={texts.head.removeTitle(short(name))}
        action={texts.head.remove}
        confirmed={() => void remove()}
      >
        <p>{texts.head.removeText}</p>
        {!over && <p>{texts.head.removeRunning}</p>}
      </Confirm>
    </div>
  );
}

interface ConfirmProps {
  open: Signal<boolean>;
  title: string;
  action: string;
  confirmed: () => void;
  children: ComponentChild;
}

/** A dialog that asks before something is lost. Escape keeps it. */
function Confirm({ open, title, action, confirmed, children }: ConfirmProps): VNode {
  const dialog = useRef<HTMLDialogElement>(null);
  const isOpen = open.value;
  useEffect(() => {
    if (isOpen) dialog.current?.showModal();
    else dialog.current?.close();
  }, [isOpen]);
  return (
    <dialog ref={dialog} onClose={() => (open.value = false)} aria-labelledby="confirm-title">
      {isOpen && (
        <>
          <h2 id="confirm-title">
            <bdi>{title}</bdi>
          </h2>
          {children}
          <p class="actions">
            <button type="button" onClick={() => (open.value = false)}>
              {texts.head.keep}
            </button>
            <button type="button" class="danger" onClick={confirmed}>
              {action}
            </button>
          </p>
        </>
      )}
    </dialog>
  );
}
