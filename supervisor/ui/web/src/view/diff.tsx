/** Changes of files. */
import type { VNode } from "preact";
import { useMemo, useState } from "preact/hooks";

import { changed, type DiffLine } from "../core/diff";
import { short, visible } from "../core/text";
import { texts } from "../texts";

/** Number of lines that are shown at first, and that one click adds. */
const SHOWN = 200;
const MORE = 2_000;
/** Longest part of a line that is shown at first, and after a click. */
const LINE = 2_000;
const WHOLE = 100_000;

export function Diff({ path, before, after }: { path: string; before: string; after: string }): VNode {
  const [most, setMost] = useState(SHOWN);
  const [longest, setLongest] = useState(LINE);
  const lines = useMemo(() => changed(before, after), [before, after]);
  const shown = lines.slice(0, most);
  return (
    <figure class="diff">
      <figcaption>
        <bdi>{visible(path)}</bdi>
      </figcaption>
      <pre tabIndex={0} role="region" aria-label={texts.conversation.diff(visible(path))} dir="ltr">
        {shown.map((line, index) => (
          <Line key={index} line={line} longest={longest} />
        ))}
      </pre>
      {shown.length < lines.length && (
        <button type="button" onClick={() => setMost(most + MORE)}>
          {texts.conversation.lines(Math.min(MORE, lines.length - shown.length), lines.length)}
        </button>
      )}
      {longest === LINE && shown.some(({ text }) => text.length > LINE) && (
        <button type="button" onClick={() => setLongest(WHOLE)}>
          {texts.conversation.longLines}
        </button>
      )}
    </figure>
  );
}

function Line({ line: { sign, text }, longest }: { line: DiffLine; longest: number }): VNode {
  const words = `${sign} ${short(text, longest)}\n`;
  return sign === "+" ? <ins>{words}</ins> : sign === "-" ? <del>{words}</del> : <span>{words}</span>;
}
