/** The lines that differ between two texts. */

export interface DiffLine {
  sign: "+" | "-" | " ";
  text: string;
}

/** Number of equal lines that are kept around a change. */
const AROUND = 3;
/** Largest product of the numbers of changed lines for which equal lines between them are looked for. */
const LARGEST = 4_000_000;

/** Returns the changed lines with a few equal ones around them. A line with `…` stands for equal lines left out. */
export function changed(before: string, after: string): DiffLine[] {
  const [old, now] = [lines(before), lines(after)];
  let head = 0;
  while (head < old.length && head < now.length && old[head] === now[head]) head += 1;
  let tail = 0;
  while (tail < old.length - head && tail < now.length - head && old.at(-1 - tail) === now.at(-1 - tail)) tail += 1;
  const middle = between(old.slice(head, old.length - tail), now.slice(head, now.length - tail));
  const equal = (texts: string[]): DiffLine[] => texts.map((text) => ({ sign: " ", text }));
  return shortened([...equal(old.slice(0, head)), ...middle, ...equal(old.slice(old.length - tail))]);
}

function lines(text: string): string[] {
  if (text === "") return [];
  return text.replace(/\n$/, "").split("\n");
}

/** Compares two lists of lines by their longest common subsequence. */
function between(old: string[], now: string[]): DiffLine[] {
  const removed: DiffLine[] = old.map((text) => ({ sign: "-", text }));
  const added: DiffLine[] = now.map((text) => ({ sign: "+", text }));
  if (old.length === 0 || now.length === 0 || old.length * now.length > LARGEST) return [...removed, ...added];
  const width = now.length + 1;
  const common = new Uint32Array((old.length + 1) * width);
  for (let i = old.length - 1; i >= 0; i -= 1) {
    for (let j = now.length - 1; j >= 0; j -= 1) {
      common[i * width + j] =
        old[i] === now[j]
          ? common[(i + 1) * width + j + 1]! + 1
          : Math.max(common[(i + 1) * width + j]!, common[i * width + j + 1]!);
    }
  }
  const result: DiffLine[] = [];
  let [i, j] = [0, 0];
  while (i < old.length && j < now.length) {
    if (old[i] === now[j]) {
      result.push({ sign: " ", text: old[i]! });
      i += 1;
      j += 1;
    } else if (common[(i + 1) * width + j]! >= common[i * width + j + 1]!) {
      result.push(removed[i]!);
      i += 1;
    } else {
      result.push(added[j]!);
      j += 1;
    }
  }
  return [...result, ...removed.slice(i), ...added.slice(j)];
}

/** Leaves out equal lines that are not near a change. */
function shortened(all: DiffLine[]): DiffLine[] {
  const near = new Uint8Array(all.length);
  all.forEach(({ sign }, at) => {
    if (sign !== " ") near.fill(1, Math.max(0, at - AROUND), at + AROUND + 1);
  });
  const result: DiffLine[] = [];
  all.forEach((line, at) => {
    if (near[at] === 1) result.push(line);
    else if (at > 0 && near[at - 1] === 1 && near.indexOf(1, at) > 0) result.push({ sign: " ", text: "…" });
  });
  return result;
}
