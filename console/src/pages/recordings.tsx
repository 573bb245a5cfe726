import { call, get, request } from "../api";
import type { Schemas } from "../api";
import { lazy } from "../lazy";
import { useLoad } from "../live";
import {
  Button,
  bytes,
  Card,
  Empty,
  go,
  may,
  save,
  say,
  State,
  Table,
  Time,
  useConfirm,
  why,
} from "../ui";

type Recording = Schemas["Recording"];

const Player = lazy(() => import("./player"));
const Video = lazy(() => import("./video"));

const name = (r: Recording) => r.title || `${r.name}, ${r.id}`;

/** Why the caller may not see what a recording has, if so. */
const hidden = (r: Recording) =>
  r.input && !may("exec") && `It has what was typed. ${why("exec")}`;

function length(r: Recording): string {
  const end = r.ended ? new Date(r.ended).getTime() : Date.now();
  const s = Math.max(
    0,
    Math.round((end - new Date(r.started).getTime()) / 1000),
  );
  const two = (n: number) => String(n).padStart(2, "0");
  return s < 3600
    ? `${Math.floor(s / 60)}:${two(s % 60)}`
    : `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}`;
}

async function download(r: Recording) {
  const answer = await request("GET", `v1/recordings/${r.id}/content`);
  const suffix = r.kind === "desktop" ? "mp4" : "cast";
  save(await answer.blob(), `${r.name}-${r.id}.${suffix}`);
}

/** All pages of the list. */
async function all(): Promise<Recording[]> {
  const found: Recording[] = [];
  let cursor = "";
  do {
    const page = await get<{ recordings: Recording[]; next?: string }>(
      "v1/recordings",
      { limit: 500, cursor },
    );
    found.push(...page.recordings);
    cursor = page.next ?? "";
  } while (cursor && found.length < 5000);
  return found;
}

export function Recordings({ at }: { at: string | undefined }) {
  const list = useLoad(
    all,
    [],
    /^recording\.(start|stop|remove|available|failed)/,
  );
  const confirm = useConfirm();
  const rows = list.data ?? [];
  const shown = rows.find((r) => r.id === at);
  return (
    <>
      <div class="head">
        <h1>Recordings</h1>
      </div>
      {at && list.data && !shown && (
        <div class="problem" role="alert">
          There is no recording {at}.
        </div>
      )}
      {shown && (
        <Card
          title={name(shown)}
          tools={<Button act={() => go("/recordings")}>Close</Button>}
        >
          {shown.kind === "desktop" ? (
            <Video
              key={shown.id + shown.state}
              id={shown.id}
              label={`Recording of the desktop of ${shown.name}`}
            />
          ) : (
            <Player key={shown.id + shown.state} id={shown.id} />
          )}
        </Card>
      )}
      <Card>
        {rows.length === 0 ? (
          <Empty title="There are no recordings" error={list.error}>
            Record a terminal or a desktop with the button on the page of a
            sandbox, or with <code>atoll record start NAME</code>.
          </Empty>
        ) : (
          <Table
            label="Recordings"
            rows={rows}
            id={(r) => r.id}
            open={(r) => !hidden(r) && go(`/recordings/${r.id}`)}
            columns={[
              {
                head: "Recording",
                cell: (r) => (
                  <>
                    <a href={`#/recordings/${r.id}`}>{r.title || r.id}</a>
                    <div class="dim">
                      {r.kind === "desktop" && "Desktop "}of{" "}
                      <a href={`#/sandboxes/${r.sandbox}`}>{r.name}</a>
                      {r.session && `, session ${r.session}`}
                      {r.input && ", with what was typed"}
                    </div>
                  </>
                ),
              },
              {
                head: "State",
                cell: (r) => (
                  <State
                    state={r.state === "recording" ? "running" : r.state}
                    reason={r.reason ?? ""}
                  />
                ),
              },
              {
                head: "Started",
                cell: (r) => <Time at={r.started} />,
                wide: true,
              },
              { head: "Length", cell: length, wide: true },
              { head: "Size", cell: (r) => bytes(r.size), wide: true },
              {
                head: "",
                right: true,
                cell: (r) => (
                  <div class="row">
                    <Button
                      off={hidden(r)}
                      label={`Play ${r.id}`}
                      act={() => go(`/recordings/${r.id}`)}
                    >
                      Play
                    </Button>
                    <Button
                      off={hidden(r)}
                      label={`Download ${r.id}`}
                      act={() => download(r)}
                    >
                      Download
                    </Button>
                    {r.state === "recording" && (
                      <Button
                        verb="exec"
                        label={`Stop ${r.id}`}
                        act={async () => {
                          await call("POST", `v1/recordings/${r.id}/stop`);
                          list.reload();
                        }}
                      >
                        Stop
                      </Button>
                    )}
                    <Button
                      kind="danger"
                      verb="write"
                      label={`Remove recording ${r.id}`}
                      act={() =>
                        confirm.ask({
                          title: `Remove the recording ${r.title || r.id}?`,
                          text: `It shows ${r.name} and cannot be made again.`,
                          yes: `Remove ${r.title || r.id}`,
                          act: async () => {
                            await call("DELETE", `v1/recordings/${r.id}`);
                            if (at === r.id) go("/recordings");
                            list.reload();
                            say(`The recording ${r.title || r.id} is removed`);
                          },
                        })
                      }
                    >
                      Remove
                    </Button>
                  </div>
                ),
              },
            ]}
          />
        )}
      </Card>
      {confirm.dialog}
    </>
  );
}
