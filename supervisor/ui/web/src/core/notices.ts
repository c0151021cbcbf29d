/** Notifications of the browser for sessions that need somebody. A click asks for the permission, and nothing else. */
import { effect, signal, type Signal } from "@preact/signals";

import { texts } from "../texts";
import { attention } from "./groups";
import type { Host } from "./login";
import { go } from "./route";

const PLACE = "notices";

export type Notices = "unsupported" | "off" | "on" | "denied";

function present(): Notices {
  if (typeof Notification === "undefined") return "unsupported";
  if (Notification.permission === "denied") return "denied";
  return Notification.permission === "granted" && localStorage.getItem(PLACE) === "on" ? "on" : "off";
}

/** Whether notifications are shown. */
export const notices = signal<Notices>(typeof localStorage === "undefined" ? "unsupported" : present());

/** Turns notifications on or off. The browser asks the person for the permission if it has none. */
export async function toggle(): Promise<void> {
  if (notices.value === "on") {
    localStorage.setItem(PLACE, "off");
  } else {
    localStorage.setItem(PLACE, "on");
    await Notification.requestPermission();
  }
  notices.value = present();
}

/** Notifies of each session that begins to need somebody. Those that need somebody at the beginning are left out. */
export function watchNotices(hosts: Signal<Host[]>): void {
  const known = new Map<string, Map<string, string>>();
  effect(() => {
    for (const host of hosts.value) {
      if (!host.sessions.complete.value) continue;
      const before = known.get(host.name);
      const now = new Map<string, string>();
      for (const brief of host.sessions.all.value.values()) {
        const reason = attention(brief);
        if (reason === undefined) continue;
        const need = `${reason} ${(brief.permissions ?? []).join(" ")}`;
        now.set(brief.id, need);
        if (before !== undefined && before.get(brief.id) !== need)
          notify(host, brief.id, host.sessions.name(brief), reason);
      }
      known.set(host.name, now);
    }
  });
}

function notify(host: Host, id: string, name: string, reason: string): void {
  if (notices.peek() !== "on" || document.visibilityState === "visible") return;
  // The text is the page's own: what an agent asks can be long, secret or misleading.
  // A second page replaces the notice.
  const notice = new Notification(texts.notice(name), {
    body: texts.reason(reason),
    tag: `${location.port} ${host.name} ${id}`,
  });
  notice.onclick = () => {
    window.focus();
    go({ view: "session", host: host.name, id });
    notice.close();
  };
}
