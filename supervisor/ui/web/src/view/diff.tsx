/** Changes of files. */
import type { VNode } from "preact";
import { useMemo, useState } from "preact/hooks";

import { changed, type DiffLine } from "../core/diff";
import { visible } from "../core/text";
import { texts } from "../texts";

/** Number of lines that are shown at first. */
const SHOWN = 200;

export function Diff({ path, before, after }: { path: string; before: string; after: string }): VNode {
  const [all, setAll] = useState(false);
  const lines = useMemo(() => changed(before, after), [before, after]);
  const shown = all ? lines : lines.slice(0, SHOWN);
  return (
    <figure class="diff">
      <figcaption>
        <bdi>{visible(path)}</bdi>
      </figcaption>
      <pre tabIndex={0} role="region" aria-label={texts.conversation.diff(visible(path))} dir="ltr">
        {shown.map((line, index) => (
          <Line key={index} line={line} />
        ))}
      </pre>
      {shown.length < lines.length && (
        <button type="button" onClick={() => setAll(true)}>
          {texts.conversation.lines(lines.length - shown.length)}
        </button>
      )}
    </figure>
  );
}

/** Longest part of a line that is shown. */
const LONGEST = 2_000;

function Line({ line: { sign, text } }: { line: DiffLine }): VNode {
  const cut = text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text;
  const words = `${sign} ${visible(cut)}\n`;
  return sign === "+" ? <ins>{words}</ins> : sign === "-" ? <del>{words}</del> : <span>{words}</span>;
}
