/** Commands that a person can copy, and texts that have commands between backticks. */
import type { VNode } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { visible } from "../core/text";
import { why } from "../texts/why";

/** Milliseconds for which the result of a copy is shown. */
const SHOWN = 4000;

/** A command with a button that copies it. Where the clipboard is closed, the command is selected instead. */
export function Command({ text }: { text: string }): VNode {
  const code = useRef<HTMLElement>(null);
  const [done, setDone] = useState<string>();
  useEffect(() => {
    if (done === undefined) return undefined;
    const timer = setTimeout(() => setDone(undefined), SHOWN);
    return () => clearTimeout(timer);
  }, [done]);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setDone(why.copied);
    } catch {
      if (code.current !== null) getSelection()?.selectAllChildren(code.current);
      setDone(why.selected);
    }
  };
  return (
    <span class="runnable">
      <code ref={code} dir="ltr">
        {visible(text)}
      </code>
      <button type="button" onClick={() => void copy()} aria-label={`${why.copy}: ${text}`}>
        {why.copy}
      </button>
      <span class="copied" role="status">
        {done}
      </span>
    </span>
  );
}

/** A text whose parts between backticks are commands. */
export function Words({ text }: { text: string }): VNode {
  const parts = text.split("`");
  // A backtick without a partner is a sign of the text.
  if (parts.length % 2 === 0) return <span dir="auto">{visible(text)}</span>;
  return (
    <span dir="auto">
      {parts.map((part, index) => (index % 2 === 1 ? <Command key={index} text={part} /> : visible(part)))}
    </span>
  );
}

/** A remedy with its commands. */
export function Remedy({ text }: { text: string }): VNode {
  return (
    <p class="remedy">
      <strong>{why.remedy}:</strong> <Words text={text} />
    </p>
  );
}
