import type { Event } from "../api";
import { Time } from "../ui";

/** What happened, in words. */
export function describe(e: Event): string {
  const parts = [
    e.program ? [e.program, ...(e.args ?? [])].join(" ") : e.subject,
  ];
  if (e.exit !== undefined) parts.push(`ended with ${e.exit}`);
  if (e.reason) parts.push(e.reason);
  if (e.code) parts.push(e.code);
  return parts.filter(Boolean).join(" · ");
}

/** Whether an event says only that somebody looked. */
export const isLook = (e: Event) =>
  e.type === "attempted" ||
  (e.type === "done" &&
    /\.(list|get|read|verify|reconnect|release|acquire)$/.test(e.op));

export const isBad = (e: Event) =>
  e.type === "denied" ||
  e.type === "failed" ||
  e.type === "egress.denied" ||
  e.type === "sandbox.lost";

/** Events, newest first. */
export function EventList(props: { events: Event[]; named?: boolean }) {
  return (
    <div>
      {[...props.events].reverse().map((e) => (
        <div class={"event" + (isBad(e) ? " bad" : "")} key={e.seq}>
          <Time at={e.time} />
          <span class="mono">{e.type === "done" ? e.op : e.type}</span>
          <span>
            {props.named && e.name && (
              <a href={`#/sandboxes/${e.sandbox ?? ""}`}>{e.name}</a>
            )}{" "}
            {(!props.named || describe(e) !== e.name) && describe(e)}
          </span>
        </div>
      ))}
    </div>
  );
}
