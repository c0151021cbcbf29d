/** Commands that a person can copy, and texts that have commands between backticks. */
import { createContext, type VNode } from "preact";
import { useContext, useEffect, useRef, useState } from "preact/hooks";

import { onMachine, type Machine } from "../core/command";
import { visible } from "../core/text";
import { why } from "../texts";

/** Milliseconds for which the result of a copy is shown. */
const SHOWN = 4000;

/** The machine whose daemon the commands below concern. */
export const CommandMachine = createContext<Machine | undefined>(undefined);

/**
 * A command with a button that copies it. Where the clipboard is closed, the command is selected instead.
 *
 * A command for another machine names it, and `isBound` means that a person must run it there.
 */
export function Command({ text, isBound }: { text: string; isBound?: boolean }): VNode {
  const code = useRef<HTMLElement>(null);
  const [done, setDone] = useState<string>();
  const { line, on } = onMachine(text, useContext(CommandMachine), isBound);
  useEffect(() => {
    if (done === undefined) return undefined;
    const timer = setTimeout(() => setDone(undefined), SHOWN);
    return () => clearTimeout(timer);
  }, [done]);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(line);
      setDone(why.copied);
    } catch {
      if (code.current !== null) getSelection()?.selectAllChildren(code.current);
      setDone(why.selected);
    }
  };
  return (
    <span class="runnable">
      <code ref={code} dir="ltr">
        {visible(line)}
      </code>
      <button type="button" onClick={() => void copy()} aria-label={`${why.copy}: ${line}`}>
        {why.copy}
      </button>
      {on !== undefined && <span class="aside">{visible(why.on(on))}</span>}
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
