/**
 * Markdown as elements. A text of an agent is never markup: HTML in it is shown as text, images are links, and links
 * lead to http, https and mailto only.
 */
import MarkdownIt from "markdown-it";
import { h, type ComponentChild, type VNode } from "preact";
import { useMemo } from "preact/hooks";

import { visible } from "../core/text";
import { Link, Long } from "./text";

const parser = new MarkdownIt("commonmark", { html: false, linkify: false, maxNesting: 20 }).enable([
  "table",
  "strikethrough",
]);
// Each link is shown with its address checked by `safe`, so the parser keeps what it would refuse.
parser.validateLink = () => true;
type Token = ReturnType<typeof parser.parse>[number];

const TAGS = new Set([
  "p",
  "ul",
  "ol",
  "li",
  "blockquote",
  "em",
  "strong",
  "s",
  "table",
  "thead",
  "tbody",
  "tr",
  "th",
  "td",
]);

/** Builds the elements of tokens between an opening and its closing token. */
function build(tokens: Token[], from: number, until: string | undefined): [ComponentChild[], number] {
  const children: ComponentChild[] = [];
  let at = from;
  while (at < tokens.length) {
    const token = tokens[at]!;
    if (token.type === until) return [children, at];
    if (token.nesting === 1) {
      const [inner, end] = build(tokens, at + 1, token.type.replace(/_open$/, "_close"));
      at = end + 1;
      children.push(element(token, inner));
    } else {
      at += 1;
      children.push(leaf(token));
    }
  }
  return [children, at];
}

/** Returns the element of a token with content. */
function element(token: Token, inner: ComponentChild[]): ComponentChild {
  if (token.type === "link_open") return <Link to={String(token.attrGet("href") ?? "")}>{inner}</Link>;
  if (token.hidden) return inner;
  // Headings of an answer stand below those of the page.
  if (token.type === "heading_open")
    return (
      <p role="heading" aria-level={Number(token.tag.slice(1)) + 1} class={`heading ${token.tag}`}>
        {inner}
      </p>
    );
  if (token.tag === "table")
    return (
      <div class="table" tabIndex={0}>
        <table>{inner}</table>
      </div>
    );
  if (token.tag === "ol")
    return (
      <ol start={Number(token.attrGet("start") ?? 1)} dir="auto">
        {inner}
      </ol>
    );
  return TAGS.has(token.tag) ? h(token.tag, { dir: "auto" }, inner) : inner;
}

/** Returns the element of a token without further tokens. */
function leaf(token: Token): ComponentChild {
  switch (token.type) {
    case "inline":
      return build(token.children ?? [], 0, undefined)[0];
    case "softbreak":
      return "\n";
    case "hardbreak":
      return <br />;
    case "code_inline":
      return <code dir="auto">{visible(token.content)}</code>;
    case "fence":
    case "code_block":
      return <Code text={token.content} />;
    case "hr":
      return <hr />;
    case "image": {
      const address = String(token.attrGet("src") ?? "");
      return <Link to={address}>{visible(token.content || address)}</Link>;
    }
    default:
      return visible(token.content);
  }
}

function Code({ text }: { text: string }): VNode {
  return (
    <Long
      text={text}
      draw={(part) => (
        <pre tabIndex={0} dir="ltr">
          <code>{visible(part)}</code>
        </pre>
      )}
    />
  );
}

/** A text with its markup. */
export function Markdown({ text }: { text: string }): VNode {
  return <Long text={text} draw={(part) => <Formatted text={part} />} />;
}

function Formatted({ text }: { text: string }): VNode {
  const children = useMemo(() => build(parser.parse(text, {}), 0, undefined)[0], [text]);
  return <div class="markdown">{children}</div>;
}
