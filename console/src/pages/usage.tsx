import { useState } from "preact/hooks";
import { get } from "../api";
import type { Schemas, Session } from "../api";
import { useLoad } from "../live";
import { Card, Empty, Field, Table } from "../ui";

const hours = (ms: number) => (ms / 3600_000).toFixed(2);

export function Usage() {
  const [by, setBy] = useState("label:team");
  const [days, setDays] = useState(7);
  const list = useLoad(() => {
    const hour = 3600_000;
    const to = Math.ceil(Date.now() / hour) * hour;
    return get<{ usage: Schemas["SessionUsage"][] }>("v1/usage", {
      by,
      from: new Date(to - days * 24 * hour).toISOString(),
      to: new Date(to).toISOString(),
    });
  }, [by, days]);
  const known = useLoad(async () => {
    const { sessions } = await get<{ sessions: Session[] }>("v1/sessions");
    const labels = sessions.flatMap((s) => Object.keys(s.labels ?? {}));
    return [...new Set(labels)].sort();
  }, []);
  const rows = [...(list.data?.usage ?? [])].sort(
    (a, b) => b.warmMs - a.warmMs,
  );
  const total = rows.reduce((sum, r) => sum + r.warmMs, 0);
  const most = Math.max(...rows.map((r) => r.warmMs), 1);
  return (
    <>
      <div class="head">
        <h1>Usage</h1>
      </div>
      <Card>
        <div class="two">
          <Field label="By" hint="label:NAME, group or provider">
            <>
              <input
                value={by}
                list="usage-by"
                onChange={(e) => setBy(e.currentTarget.value)}
              />
              <datalist id="usage-by">
                {(known.data ?? []).map((l) => (
                  <option key={l} value={"label:" + l} />
                ))}
                <option value="group" />
                <option value="provider" />
              </datalist>
            </>
          </Field>
          <Field label="Of the last">
            <select
              value={days}
              onChange={(e) => setDays(Number(e.currentTarget.value))}
            >
              {[1, 7, 30, 90].map((d) => (
                <option key={d} value={d}>
                  {d} days
                </option>
              ))}
            </select>
          </Field>
        </div>
        {rows.length === 0 ? (
          <Empty title="Nothing was used in that time" error={list.error} />
        ) : (
          <Table
            label="Usage"
            rows={rows}
            id={(r) => r.value}
            columns={[
              { head: "Value", cell: (r) => r.value || "without the label" },
              {
                head: "Hours with a sandbox",
                cell: (r) => (
                  <>
                    {hours(r.warmMs)}{" "}
                    <meter value={r.warmMs} max={most} aria-hidden="true" />
                  </>
                ),
              },
            ]}
          />
        )}
        {rows.length > 1 && <p class="dim">In total {hours(total)} hours</p>}
      </Card>
    </>
  );
}
