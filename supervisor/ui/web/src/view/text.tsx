/** Texts of agents as elements: never markup, never a control character, and a huge one only in part. */
import { Component, type ComponentChild, type VNode } from "preact";

import { safe, visible } from "../core/text";
import { texts } from "../texts";

/** Length above which a text is cut, and the length of the parts that are shown then. */
const LONGEST = 20_000;
const PART = 8_000;

/** A link to another page. That page learns nothing of this one. */
export function Link({ to, class: name, children }: { to: string; class?: string; children: ComponentChild }): VNode {
  const address = safe(to);
  if (address === undefined)
    return (
      <span class={name} title={visible(to)}>
        {children}
      </span>
    );
  return (
    <a href={address} class={name} target="_blank" rel="noopener noreferrer" title={visible(address)}>
      <bdi>{children}</bdi>
    </a>
  );
}

interface LongProps {
  text: string;
  /** Draws the text, or its shown parts. */
  draw: (text: string) => VNode;
}

/** A text whose middle is left out while it is long, with a button for the whole. */
export class Long extends Component<LongProps, { all: boolean }> {
  override state = { all: false };

  render({ text, draw }: LongProps, { all }: { all: boolean }): VNode {
    if (all || text.length <= LONGEST) return draw(text);
    return (
      <>
        {draw(text.slice(0, PART))}
        <p class="cut">
          <button type="button" onClick={() => this.setState({ all: true })}>
            {texts.conversation.showAll(text.length)}
          </button>
        </p>
        {draw(text.slice(-PART))}
      </>
    );
  }
}

/** Unformatted text. */
export function Plain({ text, class: name = "plain", label }: { text: string; class?: string; label?: string }): VNode {
  const draw = (part: string) => (
    <pre class={name} dir="auto" tabIndex={0} role={label === undefined ? undefined : "region"} aria-label={label}>
      {visible(part)}
    </pre>
  );
  return <Long text={text} draw={draw} />;
}
