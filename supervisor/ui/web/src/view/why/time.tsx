/** Times relative to now, which stay right while the page is open. */
import { signal } from "@preact/signals";
import type { VNode } from "preact";
import { useEffect } from "preact/hooks";

import { why } from "../../texts";

const clock = signal(Date.now());
let readers = 0;
let timer: ReturnType<typeof setInterval> | undefined;

/** Runs the clock while a component needs it. */
function useClock(): number {
  useEffect(() => {
    readers += 1;
    clock.value = Date.now();
    timer ??= setInterval(() => (clock.value = Date.now()), 1000);
    return () => {
      readers -= 1;
      if (readers > 0) return;
      clearInterval(timer);
      timer = undefined;
    };
  }, []);
  return clock.value;
}

/** Returns a duration in the largest unit that fits, in whole numbers. */
export function age(seconds: number): string {
  const { second, minute, hour, day } = why.ages;
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} ${second}`;
  if (whole < 3600) return `${Math.floor(whole / 60)} ${minute}`;
  if (whole < 86_400) return `${Math.floor(whole / 3600)} ${hour}`;
  return `${Math.floor(whole / 86_400)} ${day}`;
}

/** Returns a short duration with three digits. */
export function took(seconds: number): string {
  const milliseconds = Number((seconds * 1000).toPrecision(3));
  return milliseconds < 1000 ? `${milliseconds} ms` : `${milliseconds / 1000} s`;
}

/** A time: its distance from now, with the exact time as its title. */
export function When({ at }: { at: string }): VNode {
  const distance = (new Date(at).getTime() - useClock()) / 1000;
  const words = distance > 0 ? why.within(age(distance)) : why.ago(age(-distance));
  return (
    <time dateTime={at} title={at}>
      {words}
    </time>
  );
}
