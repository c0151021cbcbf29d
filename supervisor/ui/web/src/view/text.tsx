/** Texts of agents as elements: never markup, never a control character, and a huge one only in part. */
import { Component, type ComponentChild, type VNode } from "preact";

import { pieces, safe, visible } from "../core/text";
import { texts } from "../texts";

/** Length above which a text is cut, and the length of the parts that are shown then. */
const LONGEST = 20_000;
const PART = 8_000;
/** Length of what one click adds. A browser lays out a text of this length without a noticeable pause. */
const STEP = 100_000;

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

/** A text whose middle is left out while it is long. A button adds the rest, in pieces if it is huge. */
export class Long extends Component<LongProps, { added: number }> {
  override state = { added: 0 };

  render({ text, draw }: LongProps, { added }: { added: number }): VNode {
    if (text.length <= LONGEST || (added > 0 && text.length <= STEP)) return draw(text);
    // A huge text is as many elements as clicks, so that one more click draws only what it adds.
    const rest = added === 0 ? [] : pieces(text.slice(PART), STEP);
    const shown = rest.slice(0, added);
    const left = text.length - PART - shown.join("").length;
    if (left <= PART) shown.push(...rest.slice(added));
    return (
      <>
        {[text.slice(0, PART), ...shown].map((piece, index) => (
          <Piece key={index} text={piece} draw={draw} />
        ))}
        {left > PART && (
          <p class="cut">
            <button type="button" onClick={() => this.setState({ added: added + 1 })}>
              {text.length <= STEP
                ? texts.conversation.showAll(text.length)
                : texts.conversation.showMore(Math.min(STEP, left), text.length)}
            </button>
          </p>
        )}
        {left > PART && draw(text.slice(-PART))}
      </>
    );
  }
}

/** A piece of a long text. It is drawn again only if its text changed. */
class Piece extends Component<LongProps> {
  override shouldComponentUpdate({ text }: LongProps): boolean {
    return text !== this.props.text;
  }

  render({ text, draw }: LongProps): VNode {
    return draw(text);
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
