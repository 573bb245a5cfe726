import { useState } from "preact/hooks";
import { useRecent } from "../live";
import { Card, Empty } from "../ui";
import { describe, EventList, isBad } from "./events";

export function Activity() {
  const [search, setSearch] = useState("");
  const [only, setOnly] = useState(false);
  const wanted = search.toLowerCase();
  const events = useRecent(
    (e) =>
      e.type !== "attempted" &&
      (!only || isBad(e)) &&
      `${e.type} ${e.op} ${e.name} ${describe(e)}`
        .toLowerCase()
        .includes(wanted),
  );
  return (
    <>
      <div class="head">
        <h1>Activity</h1>
        <div class="tools">
          <label>
            <input
              type="checkbox"
              checked={only}
              onChange={(e) => setOnly(e.currentTarget.checked)}
            />{" "}
            only refusals and failures
          </label>
          <input
            type="search"
            aria-label="Search events"
            placeholder="Search  ( / )"
            value={search}
            onInput={(e) => setSearch(e.currentTarget.value)}
          />
        </div>
      </div>
      <Card>
        {events.length === 0 ? (
          <Empty title="Nothing in the last hour" />
        ) : (
          <EventList events={events} named />
        )}
      </Card>
    </>
  );
}
