import { useState } from "preact/hooks";
import { get } from "../api";
import type { Schemas } from "../api";
import { useLoad } from "../live";
import { Card, Empty, Field, Table } from "../ui";

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
  const rows = list.data?.usage ?? [];
  const most = Math.max(...rows.map((r) => r.warmMs), 1);
  return (
    <>
      <div class="head">
        <h1>Usage</h1>
      </div>
      <Card>
        <div class="two">
          <Field label="By" hint="label:NAME, for example label:team">
            <input value={by} onChange={(e) => setBy(e.currentTarget.value)} />
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
                    {(r.warmMs / 3600_000).toFixed(2)}{" "}
                    <meter value={r.warmMs} max={most} aria-hidden="true" />
                  </>
                ),
              },
            ]}
          />
        )}
      </Card>
    </>
  );
}
