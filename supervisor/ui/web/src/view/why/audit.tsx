/** The recorded calls that concern a session, newest first. */
import type { VNode } from "preact";
import { useState } from "preact/hooks";

import type { Schemas } from "../../core/api";
import { audit } from "../../core/requests";
import { visible } from "../../core/text";
import { why } from "../../texts";
import { Action, Content, useLoad, type Place } from "./panel";
import { When } from "./time";

const texts = why.audit;
/** Number of records of the first answer, and of each further one. */
const PAGE = 50;
/** Largest number of records that the page shows. */
const MOST = 1000;

/** Content of the panel of the recorded calls. */
export function Audit({ host, id }: Place): VNode {
  const [limit, setLimit] = useState(PAGE);
  const [changing, setChanging] = useState(false);
  const of = useLoad(() => audit(host.base, id, limit), String(limit));
  return (
    <>
      <p class="aside">{texts.note}</p>
      <div class="controls">
        <label class="check">
          <input type="checkbox" checked={changing} onChange={(event) => setChanging(event.currentTarget.checked)} />
          {texts.changing}
        </label>
        <Action busy={of.busy} run={() => of.load()}>
          {why.reload}
        </Action>
      </div>
      <Content of={of}>
        {({ records, unreadable }) => (
          <>
            {records.length === 0 && <p>{texts.none}</p>}
            <Calls id={id} records={changing ? records.filter(({ method }) => method !== "GET") : records} />
            {unreadable !== undefined && unreadable > 0 && <p class="warning">{texts.unreadable(unreadable)}</p>}
            {records.length >= limit && limit < MOST && (
              <Action busy={of.busy} run={() => setLimit(Math.min(MOST, limit + PAGE))}>
                {texts.more}
              </Action>
            )}
          </>
        )}
      </Content>
    </>
  );
}

function Calls({ id, records }: { id: string; records: Schemas["AuditRecord"][] }): VNode {
  return (
    <ul class="calls">
      {records.toReversed().map((record) => (
        <li key={record.request} data-request={record.request}>
          <span class="time">
            <When at={record.time} />
          </span>
          <code dir="ltr" title={`${record.method} ${visible(record.path)}`}>
            {record.method} {visible(record.path.replace(`/v1/sessions/${id}`, "…"))}
          </code>
          <span>
            <span class={`outcome ${record.status < 400 ? "pass" : "fail"}`}>{record.status}</span>
            {record.code && (
              <>
                {" "}
                <code>{record.code}</code>
              </>
            )}
          </span>
          <span class="aside">
            {visible(by(record.requester))}
            {record.unrecorded !== undefined && record.unrecorded > 0 && `; ${texts.unrecorded(record.unrecorded)}`}
          </span>
        </li>
      ))}
    </ul>
  );
}

function by({ program, session, token, uid }: Schemas["Requester"]): string {
  const who = session ? texts.by.session(session) : token ? texts.by.token(token) : texts.user(uid);
  return program ? `${who}, ${program}` : who;
}
