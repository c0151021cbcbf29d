/** The form for a new session. */
import type { VNode } from "preact";
import { useEffect, useId, useMemo, useRef, useState } from "preact/hooks";

import type { PromptPart, Refused } from "../core/api";
import { EMPTY, forget, mistakes, requestKey, specification, store, stored, type Draft } from "../core/creation";
import type { Host } from "../core/login";
import { create as request, type Created } from "../core/requests";
import { create } from "../texts";
import { CommandMachine } from "./copy";
import { AgentFields, OtherOptions, useAgents, useOffer } from "./create/agent";
import { Directory } from "./create/directory";
import { Choice, TextField, type Form } from "./create/fields";
import { Files, useFiles } from "./create/files";
import { Place } from "./create/place";
import { Requirements } from "./create/requirements";
import { refusal } from "./why/panel";
import { ProblemView } from "./problem";

interface Props {
  /** The hosts to choose from, the chosen one first. */
  hosts: Host[];
  /** Called with the host's name and the id of the new session. */
  created: (host: string, id: string) => void;
  cancelled: () => void;
}

/** Fields to which a code of a problem belongs. */
const BLAMED: Partial<Record<string, keyof Draft>> = {
  "no-such-directory": "directory",
  "directory-silent": "directory",
  "no-such-agent": "agent",
  "no-such-place": "place",
  "no-such-prerequisite": "requires",
  "name-taken": "name",
};

/** Fields below "More", which opens if one of them is in use. */
const MORE = [
  "workspace",
  "offered",
  "options",
  "requires",
  "labels",
  "tags",
  "title",
  "name",
  "permissions",
  "terms",
] as const;

/** The form for a new session on one of the hosts. It keeps what was typed. */
export function CreateForm({ hosts, created, cancelled }: Props): VNode | null {
  const [draft, setDraft] = useState(stored);
  const host = hosts.find(({ name }) => name === draft.host) ?? hosts[0];
  if (host === undefined) return null;
  const change = (next: Draft) => {
    store(next);
    setDraft(next);
  };
  return (
    <CommandMachine.Provider value={host}>
      <FormView
        key={host.name}
        hosts={hosts}
        host={host}
        draft={draft}
        change={change}
        created={created}
        cancelled={cancelled}
      />
    </CommandMachine.Provider>
  );
}

interface FormProps extends Props {
  host: Host;
  draft: Draft;
  change: (draft: Draft) => void;
}

function FormView({ hosts, host, draft, change, created, cancelled }: FormProps): VNode {
  const chosen = useFiles();
  const parts = chosen.files.map(({ part }) => part);
  const creation = useCreation({ host, draft, parts, created });
  const { refused, left, wrong, clear } = creation;
  const busy = creation.busy || chosen.reading;
  const send = () => {
    if (!busy) void creation.send();
  };
  const ids = useId();
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => document.getElementById(`${ids}-directory`)?.focus(), [ids]);
  useEffect(() => {
    if (refused !== undefined || left !== undefined) box.current?.focus();
  }, [refused, left]);
  const blamed = refused === undefined ? undefined : BLAMED[refused.problem.code];
  const form: Form = { draft, change: (fields) => change({ ...draft, ...fields }), ids, blamed, mistakes: wrong };
  const agents = useAgents(host);
  const agent = draft.agent || agents.find((one) => one.default === true)?.name;
  const offer = useOffer(host, agent);
  const keys = (event: KeyboardEvent) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send();
  };
  return (
    <form
      class="creation"
      aria-label={create.title}
      onKeyDown={keys}
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <h1>{create.title}</h1>
      {hosts.length > 1 && (
        <Choice
          form={{ ...form, draft: { ...draft, host: host.name } }}
          name="host"
          label={create.host}
          choices={hosts.map(({ name, label }) => [name, label] as const)}
        />
      )}
      <Directory form={form} host={host} />
      <AgentFields form={form} agents={agents} offer={offer} />
      <Place form={form} host={host} />
      <Prompt form={form} paste={chosen.add} />
      <Files ids={ids} chosen={chosen} />
      <More form={form} host={host} agent={agent} offer={offer} />
      <div ref={box} tabIndex={-1} class="result">
        <ProblemView of={refused} />
        {refused && isLost(refused) && <p>{create.lost}</p>}
        {left && <Left left={left} open={() => created(host.name, left.view.id)} />}
      </div>
      <p class="actions">
        <button type="submit" class="primary" aria-disabled={busy}>
          {busy ? create.submitting : create.submit}
        </button>
        <button type="button" onClick={cancelled}>
          {create.cancel}
        </button>
        <button
          type="button"
          onClick={() => {
            clear();
            chosen.clear();
            change({ ...EMPTY, host: draft.host });
          }}
        >
          {create.clear}
        </button>
      </p>
    </form>
  );
}

/** Returns whether the answer did not arrive, so that the session may exist. */
const isLost = ({ problem: { status } }: Refused): boolean => status === 0 || status === 502 || status === 504;

interface Creating {
  host: Host;
  draft: Draft;
  parts: PromptPart[];
  created: (host: string, id: string) => void;
}

interface Creation {
  send: () => Promise<void>;
  /** Forgets the outcome of the last attempt. */
  clear: () => void;
  busy: boolean;
  refused: Refused | undefined;
  /** A session whose title or prompt was refused. */
  left: Required<Created> | undefined;
  wrong: Form["mistakes"];
}

/** Sends the request of the form, one at a time. */
function useCreation({ host, draft, parts, created }: Creating): Creation {
  const [busy, setBusy] = useState(false);
  const [refused, setRefused] = useState<Refused>();
  const [left, setLeft] = useState<Required<Created>>();
  const [wrong, setWrong] = useState<Form["mistakes"]>({});
  const clear = () => {
    setRefused(undefined);
    setLeft(undefined);
    setWrong({});
  };
  const send = async () => {
    clear();
    const found = Object.entries(mistakes(draft)).map(([field, [word]]) => [field, create.noEqual(word!)] as const);
    setWrong(Object.fromEntries(found));
    if (found.length > 0) return;
    setBusy(true);
    try {
      const spec = specification(draft);
      const { terms } = draft;
      const key = requestKey(JSON.stringify([host.name, spec, terms, parts.length]));
      const answer = await request(host.base, { spec, terms, title: draft.title.trim(), parts }, key);
      if (answer.left === undefined) {
        forget();
        created(host.name, answer.view.id);
      } else {
        setLeft({ view: answer.view, left: answer.left });
      }
    } catch (error) {
      setRefused(refusal(error));
    }
    setBusy(false);
  };
  return { send, clear, busy, refused, left, wrong };
}

function Prompt({ form, paste }: { form: Form; paste: (files: File[]) => void }): VNode {
  const { draft, change, ids } = form;
  const pasted = (event: ClipboardEvent) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (files.length === 0) return;
    event.preventDefault();
    paste(files);
  };
  return (
    <div class="field">
      <label for={`${ids}-prompt`}>{create.prompt}</label>
      <textarea
        id={`${ids}-prompt`}
        rows={5}
        dir="auto"
        value={draft.prompt}
        onPaste={pasted}
        onInput={(event) => change({ prompt: event.currentTarget.value })}
      />
    </div>
  );
}

interface MoreProps {
  form: Form;
  host: Host;
  agent: string | undefined;
  offer: ReturnType<typeof useOffer>;
}

/** The fields that few sessions need. */
function More({ form, host, agent, offer }: MoreProps): VNode {
  const { draft, change, blamed, mistakes: wrong } = form;
  const used = useMemo(() => MORE.some((name) => JSON.stringify(draft[name]) !== JSON.stringify(EMPTY[name])), []);
  const [open, setOpen] = useState(used);
  const named = MORE.some((name) => name === blamed || wrong[name] !== undefined);
  useEffect(() => {
    if (named) setOpen(true);
  }, [named]);
  return (
    <details class="more" open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>{create.more}</summary>
      <Requirements form={form} host={host} agent={agent} />
      <Choice form={form} name="terms" label={create.terms} choices={entries(create.termsOf)} />
      <TextField form={form} name="title" label={create.sessionTitle} />
      <TextField form={form} name="name" label={create.name} help={create.nameHelp} />
      <TextField form={form} name="labels" label={create.labels} help={create.labelsHelp} />
      <TextField form={form} name="tags" label={create.tags} help={create.tagsHelp} />
      <OtherOptions form={form} offer={offer} />
      <TextField form={form} name="options" label={create.options} help={create.optionsHelp} />
      <Choice form={form} name="permissions" label={create.permissions} choices={entries(create.policies)} />
      <label class="check">
        <input
          type="checkbox"
          checked={draft.workspace}
          onChange={(event) => change({ workspace: event.currentTarget.checked })}
        />
        {create.workspace}
      </label>
    </details>
  );
}

const entries = <Key extends string>(texts: Record<Key, string>): (readonly [Key, string])[] =>
  Object.entries(texts) as [Key, string][];

/** A session that exists, though a later step was refused. */
function Left({ left: { left }, open }: { left: Required<Created>; open: () => void }): VNode {
  const leave = () => {
    forget();
    open();
  };
  return (
    <>
      <p role="alert">{create.left[left.step]}</p>
      <ProblemView of={left.refused} />
      <button type="button" onClick={leave}>
        {create.openSession}
      </button>
    </>
  );
}
