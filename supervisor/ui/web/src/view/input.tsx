/** The input of a conversation: the text, its attachments, the queue, the agent's commands and options. */
import type { Signal } from "@preact/signals";
import type { VNode } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { call, session as path, type Schemas, type SessionView } from "../core/api";
import { attachment, type Attachment } from "../core/attachments";
import { draft, send, write } from "../core/draft";
import { keys } from "../core/keys";
import type { Host } from "../core/login";
import { short, visible } from "../core/text";
import { texts } from "../texts";
import { Options } from "./options";

interface Props {
  host: Host;
  id: string;
  session: SessionView | undefined;
  problem: Signal<unknown>;
  commands: { name: string; description: string; hint?: string }[];
  /** Called when a message was accepted. */
  sent: () => void;
}

export function Input({ host, id, session, problem, commands, sent }: Props): VNode {
  const [text, setText] = useState(() => draft(host.base, id));
  const [files, setFiles] = useState<Attachment[]>([]);
  const [sending, setSending] = useState(false);
  const area = useRef<HTMLTextAreaElement>(null);
  const status = session?.status;
  const mustResume = status?.phase === "stopped" || status?.phase === "failed";
  const change = (now: string) => {
    setText(now);
    write(host.base, id, now);
  };
  const act = (run: Promise<unknown>) => {
    problem.value = undefined;
    return run.catch((error: unknown) => {
      problem.value = error;
      throw error;
    });
  };
  const cancel = () => void act(call(host.base, "post", path(id, "/cancel"))).catch(() => undefined);
  const submit = () => {
    if (sending || (text.trim() === "" && files.length === 0)) return;
    setSending(true);
    const parts = files.map(({ part }) => part);
    // A prompt continues a completed session by itself, and no stopped or failed one.
    const resumed = mustResume ? call(host.base, "post", path(id, "/resume")) : Promise.resolve();
    act(resumed.then(() => send(host.base, id, text, parts)))
      .then(
        () => {
          // What was typed meanwhile stays.
          setText((now) => (now === text ? "" : now));
          setFiles([]);
          sent();
        },
        () => undefined,
      )
      .finally(() => setSending(false));
  };
  useEffect(() => {
    const unbind = [keys.bind("i", () => area.current?.focus()), keys.bind("x", () => status?.turn && cancel())];
    return () => unbind.forEach((each) => each());
  });
  return (
    <form
      class="input"
      aria-label={texts.input.label}
      onSubmit={(event) => {
        event.preventDefault();
        submit();
      }}
    >
      <Queue host={host} id={id} queue={status?.queue ?? []} act={act} />
      {status?.turn?.silent && status.permissions.length === 0 && <p class="hint">{texts.input.silent}</p>}
      <Suggestions
        text={text}
        commands={commands}
        choose={(name) => {
          change(`/${name} `);
          area.current?.focus();
        }}
      />
      <textarea
        ref={area}
        aria-label={texts.input.label}
        placeholder={mustResume ? texts.input.placeholderOver : texts.input.placeholder}
        value={text}
        dir="auto"
        rows={Math.min(12, Math.max(2, text.split("\n").length))}
        onInput={(event) => change(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
          event.preventDefault();
          submit();
        }}
      />
      <div class="actions">
        <Files files={files} change={setFiles} problem={problem} />
        <Options host={host} id={id} session={session} problem={problem} />
        <span class="spring" />
        {status?.turn && (
          <button type="button" onClick={cancel}>
            {texts.input.cancel}
          </button>
        )}
        <button type="submit" class="primary" disabled={sending || (text.trim() === "" && files.length === 0)}>
          {sending ? texts.input.sending : texts.input[mustResume ? "resume" : status?.turn ? "queue" : "send"]}
        </button>
      </div>
    </form>
  );
}

interface QueueProps {
  host: Host;
  id: string;
  queue: Schemas["TurnView"][];
  act: (run: Promise<unknown>) => Promise<unknown>;
}

function Queue({ host, id, queue, act }: QueueProps): VNode | null {
  if (queue.length === 0) return null;
  const withdraw = (turn: string) =>
    void act(call(host.base, "delete", path(id, `/turns/${encodeURIComponent(turn)}`))).catch(() => undefined);
  return (
    <ul class="queue" aria-label={texts.input.queueTitle}>
      {queue.map((turn) => (
        <li key={turn.id} data-turn={turn.id}>
          <span>
            <bdi>{short(turn.prompt)}</bdi>
          </span>
          <button type="button" onClick={() => withdraw(turn.id)}>
            {texts.input.withdraw}
          </button>
        </li>
      ))}
    </ul>
  );
}

/** Number of commands that are shown at once. */
const MOST = 8;

interface SuggestionsProps {
  text: string;
  commands: Props["commands"];
  choose: (name: string) => void;
}

function Suggestions({ text, commands, choose }: SuggestionsProps): VNode | null {
  const begun = /^\/(\S*)$/.exec(text)?.[1];
  const matching = begun === undefined ? [] : commands.filter(({ name }) => name.startsWith(begun)).slice(0, MOST);
  if (matching.length === 0) return null;
  return (
    <ul class="commands" aria-label={texts.input.commands}>
      {matching.map(({ name, description, hint }) => (
        <li key={name}>
          <button type="button" onClick={() => choose(name)}>
            <b>
              <bdi>/{short(name)}</bdi>
            </b>{" "}
            {hint && (
              <i>
                <bdi>{short(hint)}</bdi>
              </i>
            )}{" "}
            <span>
              <bdi>{short(description)}</bdi>
            </span>
          </button>
        </li>
      ))}
    </ul>
  );
}

interface FilesProps {
  files: Attachment[];
  change: (files: Attachment[]) => void;
  problem: Signal<unknown>;
}

function Files({ files, change, problem }: FilesProps): VNode {
  const add = async (chosen: FileList | null) => {
    try {
      change([...files, ...(await Promise.all([...(chosen ?? [])].map(attachment)))]);
    } catch (error) {
      problem.value = error;
    }
  };
  return (
    <div class="files">
      {files.map((file, index) => (
        <button
          key={index}
          type="button"
          class="file"
          aria-label={texts.input.detach(file.name)}
          onClick={() => change(files.filter((other) => other !== file))}
        >
          <bdi>{visible(file.name)}</bdi> <span aria-hidden="true">×</span>
        </button>
      ))}
      <label class="attach">
        <span>{texts.input.attach}</span>
        <input
          type="file"
          multiple
          onChange={(event) => {
            const field = event.currentTarget;
            void add(field.files).then(() => (field.value = ""));
          }}
        />
      </label>
    </div>
  );
}
