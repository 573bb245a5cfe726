import { useState } from "preact/hooks";
import { call, get } from "../api";
import type { Schemas } from "../api";
import { useLoad } from "../live";
import {
  Button,
  Card,
  Dialog,
  Empty,
  Field,
  Problem,
  say,
  State,
  Table,
  Time,
  useConfirm,
} from "../ui";

type Machine = Schemas["Machine"];

const listMachines = () =>
  get<{ machines: Machine[] }>("v1/machines").then((r) => r.machines);

/** The state of an enrolment, or whether an active machine answers. */
const state = (m: Machine) => (m.state === "active" ? m.liveness : m.state);

/** What the owner of a machine agreed to. */
function Offers({ of: m }: { of: Machine }) {
  const more = [
    m.consents?.includes("screen") && "its screen",
    m.consents?.includes("updates") && "updates of its program",
  ].filter(Boolean);
  return (
    <>
      {m.mode === "whole-machine" ? (
        <>
          <State state="warning" text="the whole machine" />
          {m.directory && <div class="dim">{m.directory}</div>}
        </>
      ) : (
        "sandboxes"
      )}
      {more.length > 0 && <div class="dim">and {more.join(", ")}</div>}
    </>
  );
}

/** Machines of people that make sandboxes for this daemon. */
export function Machines() {
  const [dialog, setDialog] = useState<"approve" | "invite">();
  const list = useLoad(listMachines, [], /^machine\.(approve|revoke|invite)/);
  const confirm = useConfirm();
  const rows = list.data ?? [];
  const close = () => {
    setDialog(undefined);
    list.reload();
  };
  return (
    <>
      <div class="head">
        <h1>Machines</h1>
        <div class="tools">
          <Button verb="admin" act={() => setDialog("invite")}>
            Invite
          </Button>
          <Button kind="primary" verb="admin" act={() => setDialog("approve")}>
            Approve a machine
          </Button>
        </div>
      </div>
      <p class="dim">
        Machines that connect to this daemon and make sandboxes for it. Their
        owners join with <code>atoll machine join</code>, and pause them there.
      </p>
      <Card>
        {rows.length === 0 ? (
          <Empty title="There are no machines" error={list.error} />
        ) : (
          <Table
            label="Machines"
            rows={rows}
            id={(m) => m.id}
            columns={[
              {
                head: "Name",
                cell: (m) => (
                  <>
                    <b>{m.name}</b>
                    <div class="dim">
                      {[m.os, m.arch, m.version].filter(Boolean).join(" ")}
                    </div>
                  </>
                ),
              },
              { head: "State", cell: (m) => <State state={state(m)} /> },
              { head: "Offers", cell: (m) => <Offers of={m} /> },
              { head: "Provider", cell: (m) => m.provider ?? "–", wide: true },
              { head: "Seen", cell: (m) => <Time at={m.seen} />, wide: true },
              {
                head: "",
                right: true,
                cell: (m) =>
                  m.state !== "revoked" && (
                    <Button
                      kind="danger"
                      verb="admin"
                      label={`Revoke ${m.name}`}
                      act={() =>
                        confirm.ask({
                          title: `Revoke ${m.name}?`,
                          text: `The connection to ${m.name} ends, and it has to join again to make sandboxes.`,
                          yes: `Revoke ${m.name}`,
                          act: async () => {
                            await call("DELETE", `v1/machines/${m.id}`);
                            list.reload();
                            say(`${m.name} is revoked`);
                          },
                        })
                      }
                    >
                      Revoke
                    </Button>
                  ),
              },
            ]}
          />
        )}
      </Card>
      {dialog === "approve" && <Approve close={close} />}
      {dialog === "invite" && <Invite close={close} />}
      {confirm.dialog}
    </>
  );
}

/** Approves the machine that shows a code, after a look at what it is. */
function Approve({ close }: { close: () => void }) {
  const [code, setCode] = useState("");
  const [found, setFound] = useState<Machine>();
  const [agreed, setAgreed] = useState(false);
  const [screen, setScreen] = useState(false);
  const whole = found?.mode === "whole-machine";
  const takes: Machine["consents"] = [
    ...(whole ? ["whole-machine" as const] : []),
    ...(screen ? ["screen" as const] : []),
  ];
  return (
    <Dialog title="Approve a machine" close={close}>
      {!found ? (
        <Field label="Code" hint="The machine shows it: atoll machine join">
          <input
            value={code}
            autocomplete="off"
            placeholder="ABCD-EFGH"
            onInput={(e) => setCode(e.currentTarget.value)}
          />
        </Field>
      ) : (
        <>
          <dl>
            <dt>Name</dt>
            <dd>{found.name}</dd>
            <dt>System</dt>
            <dd>{[found.os, found.arch].filter(Boolean).join(" ")}</dd>
            <dt>Offers</dt>
            <dd>
              <Offers of={found} />
            </dd>
            <dt>Key</dt>
            <dd>
              <code>{found.key}</code>
            </dd>
          </dl>
          {whole && (
            <>
              <Problem
                error={
                  new Error(
                    "Commands run there as its owner, with all rights of the owner, and apart from nothing.",
                  )
                }
              />
              <label>
                <input
                  type="checkbox"
                  checked={agreed}
                  onChange={(e) => setAgreed(e.currentTarget.checked)}
                />{" "}
                I agree
              </label>
            </>
          )}
          {found.consents?.includes("screen") && (
            <div>
              <label>
                <input
                  type="checkbox"
                  checked={screen}
                  onChange={(e) => setScreen(e.currentTarget.checked)}
                />{" "}
                See and use its screen, too
              </label>
            </div>
          )}
        </>
      )}
      <footer>
        <Button act={close}>Cancel</Button>
        {!found ? (
          <Button
            kind="primary"
            off={!code.trim() && "Give the code."}
            act={async () =>
              setFound(
                await get<Machine>(
                  `v1/machine-codes/${encodeURIComponent(code.trim())}`,
                ),
              )
            }
          >
            Look it up
          </Button>
        ) : (
          <Button
            kind="primary"
            verb="admin"
            off={whole && !agreed && "Agree first."}
            act={async () => {
              await call("POST", "v1/machines", {
                json: {
                  code: code.trim(),
                  ...(takes.length > 0 && { consents: takes }),
                },
              });
              say(`${found.name} is approved`);
              close();
            }}
          >
            Approve {found.name}
          </Button>
        )}
      </footer>
    </Dialog>
  );
}

/** Makes a token with which one machine joins without a person. */
function Invite({ close }: { close: () => void }) {
  const [name, setName] = useState("");
  const [made, setMade] = useState<Schemas["MachineToken"]>();
  return (
    <Dialog title="Invite a machine" close={close}>
      {made ? (
        <>
          <p>
            This token enrols {made.machine.name}, once. It is not shown again.
          </p>
          <pre>{made.token}</pre>
        </>
      ) : (
        <Field label="Name of the machine">
          <input value={name} onInput={(e) => setName(e.currentTarget.value)} />
        </Field>
      )}
      <footer>
        {made ? (
          <Button kind="primary" act={close}>
            Done
          </Button>
        ) : (
          <>
            <Button act={close}>Cancel</Button>
            <Button
              kind="primary"
              verb="admin"
              off={!name && "Give a name."}
              act={async () =>
                setMade(
                  await call("POST", "v1/machine-tokens", { json: { name } }),
                )
              }
            >
              Make a token
            </Button>
          </>
        )}
      </footer>
    </Dialog>
  );
}
