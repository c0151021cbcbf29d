/** A question of an agent, with its command in view and its answers. */
import type { VNode } from "preact";
import { useState } from "preact/hooks";

import type { Schemas } from "../core/api";
import type { Answer, Item } from "../core/conversation";
import { initial, parsed, type Field, fields } from "../core/form";
import { short, visible } from "../core/text";
import { texts } from "../texts";
import { Diff } from "./diff";
import { Link, Plain } from "./text";

/** Length above which a title is shown as a text of its own. */
const LONG = 500;

/** Sends the answer to a question. */
export type Reply = (permission: string, answer: Schemas["PermissionAnswer"]) => void;

/** Whether the session waits for the answer to a question. The digits answer the first one that is open. */
export type Open = "first" | "later" | "no";

interface Props {
  item: Item & { kind: "question" };
  open: Open;
  /** Absent in read-only mode. */
  reply: Reply | undefined;
}

export function Question({ item, open, reply }: Props): VNode {
  const { request, answer } = item;
  const { elicitation } = request;
  const waits = answer === undefined && open !== "no";
  return (
    <article
      class={`item question ${waits ? "open" : "answered"}`}
      data-seq={item.seq}
      data-permission={request.id}
      aria-label={texts.question.label}
    >
      <p class="who">
        {request.origin === "agentd" ? texts.question.asksAgentd : texts.question.asks}
        {kindOf(request).map((word) => (
          <span key={word} class="kind">
            {short(word)}
          </span>
        ))}
      </p>
      {request.title.length > LONG ? (
        <Plain text={request.title} />
      ) : (
        <p class="asked">
          <bdi>{visible(request.title)}</bdi>
        </p>
      )}
      <Subject item={item} />
      {elicitation?.mode === "url" && (
        <p>
          <Link to={elicitation.url}>
            {texts.question.open}: {short(elicitation.url, LONG)}
          </Link>
        </p>
      )}
      {waits && reply !== undefined && elicitation?.mode === "form" && (
        <Form request={request} elicitation={elicitation} reply={reply} />
      )}
      {waits && reply !== undefined && elicitation?.mode !== "form" && (
        <Options request={request} reply={reply} hasKeys={open === "first"} />
      )}
      {answer !== undefined && <p class="answer">{answerWords(request, answer)}</p>}
      {answer === undefined && open === "no" && <p class="answer">{texts.question.closed}</p>}
    </article>
  );
}

/** Returns the kind of the tool and the agent's name for it, without repetition. */
function kindOf({ tool_kind: kind, details }: Schemas["PermissionRequest"]): string[] {
  return [...new Set([kind, details?.tool].filter((word) => word != null && word !== ""))] as string[];
}

/**
 * The subject of a question: the command, the files, the changes and what else the agent sent of its tool call.
 *
 * The details of the request have bounded lengths. What they lack comes from the tool call.
 */
function Subject({ item: { request, tool } }: { item: Props["item"] }): VNode {
  const { details, elicitation } = request;
  const command = details?.command ?? tool?.command;
  const paths = details?.paths ?? [];
  const own = details?.diffs?.map(({ path, old, new: after }) => ({ path, before: old ?? "", after })) ?? [];
  const diffs = own.length > 0 ? own : (tool?.content ?? []).filter((part) => part.type === "diff");
  const outputs = (tool?.content ?? []).filter((part) => part.type === "text");
  const input = command === undefined && diffs.length === 0 ? details?.arguments : undefined;
  const isKnown = command !== undefined || paths.length + diffs.length + outputs.length > 0 || input != null;
  return (
    <>
      {command !== undefined && <Plain text={command} class="command" label={texts.conversation.command} />}
      {details?.directory && (
        <p class="where">
          <bdi>{texts.question.directory(visible(details.directory))}</bdi>
        </p>
      )}
      {paths.length > 0 && (
        <ul class="paths">
          {paths.map((path) => (
            <li key={path}>
              <code>
                <bdi>{visible(path)}</bdi>
              </code>
            </li>
          ))}
        </ul>
      )}
      {diffs.map((diff, index) => (
        <Diff key={index} {...diff} />
      ))}
      {outputs.map((part, index) => (
        <Plain key={index} text={part.text} />
      ))}
      {input != null && <Plain text={input} />}
      {details?.cut && <p class="where">{texts.question.cut}</p>}
      {!isKnown && elicitation == null && request.origin !== "agentd" && (
        <p class="where warning">{texts.question.unknown}</p>
      )}
    </>
  );
}

interface OptionsProps {
  request: Schemas["PermissionRequest"];
  reply: Reply;
  hasKeys: boolean;
}

function Options({ request, reply, hasKeys }: OptionsProps): VNode {
  const offered =
    request.options.length > 0 ? request.options : [{ id: "", name: texts.question.decline, kind: "reject_once" }];
  return (
    <p class="answers">
      {offered.map(({ id, name, kind }, index) => (
        <button
          key={id}
          type="button"
          class={kind.startsWith("allow") ? "allow" : kind.startsWith("reject") ? "reject" : ""}
          data-option={id}
          aria-keyshortcuts={hasKeys && index < 9 ? String(index + 1) : undefined}
          onClick={() => reply(request.id, id === "" ? "deny" : { option: id })}
        >
          {hasKeys && index < 9 && <kbd>{index + 1}</kbd>} <bdi>{short(name, LONG)}</bdi>
        </button>
      ))}
    </p>
  );
}

interface FormProps {
  request: Schemas["PermissionRequest"];
  elicitation: Schemas["Elicitation"] & { mode: "form" };
  reply: Reply;
}

function Form({ request, elicitation, reply }: FormProps): VNode {
  const asked = fields(elicitation.schema, elicitation.order);
  const [values, setValues] = useState<Record<string, string>>(() => initial(asked));
  const change = (name: string, value: string) => setValues((before) => ({ ...before, [name]: value }));
  return (
    <form
      class="form"
      onSubmit={(event) => {
        event.preventDefault();
        reply(request.id, { form: parsed(asked, values) as Schemas["FormValues"] });
      }}
    >
      {asked.map((field) => (
        <label key={field.name}>
          <span>
            <bdi>{short(field.title, LONG)}</bdi> {field.required && <small>({texts.question.required})</small>}
          </span>
          {field.description && (
            <small>
              <bdi>{short(field.description, 4 * LONG)}</bdi>
            </small>
          )}
          <Entry field={field} value={values[field.name] ?? ""} change={(value) => change(field.name, value)} />
        </label>
      ))}
      <p class="answers">
        <button type="submit" class="allow">
          {texts.question.accept}
        </button>
        <button type="button" class="reject" onClick={() => reply(request.id, "deny")}>
          {texts.question.decline}
        </button>
      </p>
    </form>
  );
}

function Entry({ field, value, change }: { field: Field; value: string; change: (value: string) => void }): VNode {
  if (field.choices !== undefined) {
    return (
      <select value={value} required={field.required} onChange={(event) => change(event.currentTarget.value)}>
        {!field.required && <option value="" />}
        {field.choices.map((choice) => (
          <option key={choice.value} value={choice.value}>
            {short(choice.name)}
          </option>
        ))}
      </select>
    );
  }
  if (field.kind === "boolean") {
    return (
      <input
        type="checkbox"
        checked={value === "true"}
        onChange={(event) => change(String(event.currentTarget.checked))}
      />
    );
  }
  const isNumber = field.kind === "number" || field.kind === "integer";
  const common = {
    required: field.required,
    value,
    onInput: (event: { currentTarget: HTMLInputElement }) => change(event.currentTarget.value),
  };
  return isNumber ? (
    <input type="number" step={field.kind === "number" ? "any" : "1"} {...common} />
  ) : (
    <input dir="auto" {...common} />
  );
}

function answerWords({ options }: Schemas["PermissionRequest"], answer: Answer): VNode {
  const option = options.find(({ id }) => id === answer.option);
  const by = <bdi>{short(who(answer))}</bdi>;
  if (answer.option === undefined) return <>{[texts.question.cancelledBy, " ", by]}</>;
  const name = (
    <b>
      <bdi>{short(option?.name ?? answer.option)}</bdi>
    </b>
  );
  return <>{[name, " – ", texts.question.answeredBy, " ", by]}</>;
}

/** Returns who gave an answer: the token or the program of the request, or the rule that decided. */
function who({ by, requester }: Answer): string {
  if (requester?.token) return texts.question.token(requester.token);
  const program = requester?.program?.split("/").at(-1);
  if (program) return texts.question.program(program, requester?.pid);
  return texts.question.by[by] ?? by;
}
