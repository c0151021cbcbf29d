/** The items of a conversation as elements. */
import { Component, type ComponentChild, type VNode } from "preact";
import { useState } from "preact/hooks";

import type { PromptPart } from "../core/api";
import type { Item } from "../core/conversation";
import { safe, short, visible } from "../core/text";
import { secondsOf, type Tool, type ToolContent } from "../core/tools";
import { texts } from "../texts";
import { Diff } from "./diff";
import { Markdown } from "./markdown";
import { Question, type Open, type Reply } from "./question";
import { Link, Long, Plain } from "./text";

interface Props {
  item: Item;
  /** The item's `rev`: an item is changed in place, so only this tells that it changed. */
  rev: number;
  /** Whether a question can be answered now, and whether keys answer it. */
  open: Open;
  reply: Reply | undefined;
}

/** Most characters of a sentence about the session. */
const SENTENCE = 2_000;

/** An item. It is drawn again only if it changed, so that a long conversation costs nothing while one text grows. */
export class ItemView extends Component<Props> {
  override shouldComponentUpdate(next: Props): boolean {
    const { item, rev, open } = this.props;
    return next.item !== item || next.rev !== rev || next.open !== open;
  }

  render({ item, open, reply }: Props): VNode | null {
    switch (item.kind) {
      case "prompt":
        return (
          <article class="item prompt" data-seq={item.seq} data-turn={item.turn} aria-label={texts.conversation.you}>
            <p class="who">
              {item.by === undefined ? texts.conversation.you : texts.conversation.fromSession(item.by)}
            </p>
            <Plain text={item.text} />
            {item.parts.length > 0 && <Parts parts={item.parts} />}
            {item.queued && <small class="queued">{texts.conversation.queued}</small>}
          </article>
        );
      case "note":
        return (
          <Folded label={texts.conversation.note} seq={item.seq} kind="note">
            <Plain text={item.text} />
          </Folded>
        );
      case "text":
        return (
          <article class="item text" data-seq={item.seq}>
            <Markdown text={item.text} />
          </article>
        );
      case "thought":
        return (
          <Folded label={texts.conversation.thought} seq={item.seq} kind="thought">
            <Markdown text={item.text} />
          </Folded>
        );
      case "image":
        return (
          <div class="item" data-seq={item.seq}>
            <Picture mime={item.mime} data={item.data} />
          </div>
        );
      case "plan":
        return <Plan item={item} />;
      case "tool":
        return <ToolView tool={item.tool} seq={item.seq} />;
      case "question":
        return <Question item={item} open={open} reply={reply} />;
      case "ended":
        return <Ended item={item} />;
      case "marker":
        return (
          <p class="item marker" data-seq={item.seq} data-marker={item.marker}>
            <time dateTime={item.time}>{new Date(item.time).toLocaleTimeString()}</time>{" "}
            <bdi>{short(texts.markers[item.marker](item.values), SENTENCE)}</bdi>
          </p>
        );
    }
  }
}

function Ended({ item }: { item: Item & { kind: "ended" } }): VNode {
  const words = item.synthetic
    ? texts.conversation.synthetic(item.synthetic.detail)
    : texts.conversation.ended(item.reason ?? "");
  if (words === "") return <hr class="item" data-seq={item.seq} data-turn-ended={item.turn} />;
  const lines = item.synthetic?.stderr ?? [];
  return (
    <div class="item ended" data-seq={item.seq} data-turn-ended={item.turn}>
      <p>
        <bdi>{short(words, SENTENCE)}</bdi>
      </p>
      {lines.length > 0 && <Plain text={lines.join("\n")} />}
    </div>
  );
}

/** Number of entries of a plan that are shown at first, and that one click adds. */
const ENTRIES = 100;

function Plan({ item }: { item: Item & { kind: "plan" } }): VNode {
  const [most, setMost] = useState(ENTRIES);
  return (
    <section class="item plan" data-seq={item.seq} aria-label={texts.conversation.plan}>
      <p class="who">{texts.conversation.plan}</p>
      <ol>
        {item.entries.slice(0, most).map((entry, index) => (
          <li key={index} data-status={entry.status}>
            <Long text={entry.content} draw={(part) => <bdi>{visible(part)}</bdi>} />{" "}
            <small>{texts.conversation.status(short(entry.status))}</small>
          </li>
        ))}
      </ol>
      {item.entries.length > most && (
        <button type="button" onClick={() => setMost(most + ENTRIES)}>
          {texts.conversation.moreEntries(Math.min(ENTRIES, item.entries.length - most))}
        </button>
      )}
    </section>
  );
}

interface FoldedProps {
  label: ComponentChild;
  seq: number;
  kind: string;
  isOpen?: boolean;
  status?: string;
  children: ComponentChild;
}

/** Something that is shown by a click. What is folded is not in the document. */
function Folded({ label, seq, kind, isOpen = false, status, children }: FoldedProps): VNode {
  const [chosen, choose] = useState<boolean>();
  const open = chosen ?? isOpen;
  const toggled = (now: boolean) => {
    if (now !== open) choose(now);
  };
  return (
    <details
      class={`item ${kind}`}
      data-seq={seq}
      data-status={status}
      open={open}
      onToggle={(event) => toggled(event.currentTarget.open)}
    >
      <summary>{label}</summary>
      {open && children}
    </details>
  );
}

/** Types of images that browsers show without running anything. SVG is none of them. */
const IMAGES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);

function Picture({ mime, data }: { mime: string; data: string }): VNode {
  if (!IMAGES.has(mime) || !/^[A-Za-z0-9+/]*={0,2}$/.test(data))
    return <p class="image">{texts.conversation.imageHidden(short(mime))}</p>;
  return <img class="image" src={`data:${mime};base64,${data}`} alt={texts.conversation.image(mime)} loading="lazy" />;
}

/** The attachments of a prompt. */
function Parts({ parts }: { parts: PromptPart[] }): VNode {
  return (
    <ul class="parts" aria-label={texts.conversation.parts}>
      {parts.map((part, index) => (
        <li key={index}>
          <PartOfPrompt part={part} />
        </li>
      ))}
    </ul>
  );
}

function PartOfPrompt({ part }: { part: PromptPart }): VNode {
  switch (part.type) {
    case "image":
      // A large image is in a file of the session, and its place has the digest.
      return part.data ? (
        <Picture mime={part.mimeType} data={part.data} />
      ) : (
        <span>{short(part.uri ?? part.mimeType)}</span>
      );
    case "resource":
      return (
        <span>
          <bdi>{short(part.resource.uri)}</bdi>
        </span>
      );
    case "resource_link":
      return safe(part.uri) === undefined ? (
        <span>
          <bdi>{short(part.name)}</bdi>
        </span>
      ) : (
        <Link to={part.uri}>{short(part.name)}</Link>
      );
    default:
      return <span>{short(part.mimeType)}</span>;
  }
}

function ToolView({ tool, seq }: { tool: Tool; seq: number }): VNode {
  const seconds = secondsOf(tool);
  const label = (
    <>
      <span class="kind">{short(tool.kind)}</span>
      <span class="title">
        <bdi>{short(tool.title)}</bdi>
      </span>
      <span class="status">{texts.conversation.status(short(tool.status))}</span>
      {seconds !== undefined && (
        <span class="duration">{seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s</span>
      )}
    </>
  );
  const hasDiff = tool.content.some((part) => part.type === "diff");
  return (
    <Folded label={label} seq={seq} kind="tool" status={tool.status} isOpen={hasDiff}>
      {tool.command !== undefined && <Plain text={tool.command} class="command" label={texts.conversation.command} />}
      {tool.content.map((part, index) => (
        <Part key={index} part={part} />
      ))}
      {tool.printed !== undefined && <Plain text={tool.printed} label={texts.conversation.output} />}
    </Folded>
  );
}

function Part({ part }: { part: ToolContent }): VNode {
  switch (part.type) {
    case "text":
      return <Plain text={part.text} label={texts.conversation.output} />;
    case "diff":
      return <Diff path={part.path} before={part.before} after={part.after} />;
    case "image":
      return <Picture mime={part.mime} data={part.data} />;
  }
}
