// A real desktop in the console, with a browser inside. It needs the image
// "desktop", which make desktop-image-test builds: ATOLL_DESKTOP_STATE is the
// state directory that has it.
import assert from "node:assert/strict";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { browser, Daemon, shots } from "./daemon.mjs";

const state = process.env.ATOLL_DESKTOP_STATE;
const only = {
  skip: !state && "it needs the image desktop: make desktop-image-test",
};

let daemon;
let chrome;
let page;
const faults = [];

// The page inside is of one colour: red, then green and yellow after clicks, and
// blue after the key b.
const colours = {
  red: [200, 30, 30],
  green: [30, 160, 60],
  yellow: [220, 200, 40],
  blue: [30, 60, 200],
};
const site = `<!doctype html><title>inside</title><style>body{margin:0;height:100vh}</style><body><script>
let clicks = 0;
const show = (c) => (document.body.style.background = "rgb(" + c + ")");
const colours = ${JSON.stringify(Object.fromEntries(Object.entries(colours).map(([k, v]) => [k, v.join()])))};
show(colours.red);
onclick = () => show(++clicks === 1 ? colours.green : colours.yellow);
onkeydown = (e) => e.key === "b" && show(colours.blue);
</script>`;

let base; // the address of the console, which the state directory remembers
const button = (name, on = page) =>
  on.getByRole("button", { name, exact: true });

/** Waits until what an element shows has about a colour, beside the pointer: a video
 * does not keep it exactly. */
const shows = (colour, on = page, what = ".vnc canvas") =>
  on.waitForFunction(
    ([rgb, selector]) => {
      const shown = document.querySelector(selector);
      const width = shown?.videoWidth || shown?.width;
      if (!width) return false;
      const copy = document.createElement("canvas");
      copy.width = copy.height = 1;
      const draw = copy.getContext("2d");
      const height = shown.videoHeight || shown.height;
      draw.drawImage(shown, width / 4, height / 4, 1, 1, 0, 0, 1, 1);
      const is = draw.getImageData(0, 0, 1, 1).data;
      return rgb.every((n, i) => Math.abs(n - is[i]) < 60);
    },
    [colours[colour], what],
    { polling: 100 },
  );

before(async () => {
  if (!state) return;
  daemon = new Daemon(state);
  await daemon.start();
  daemon.run(
    "create",
    "--image",
    "desktop",
    "--memory",
    "2g",
    "--name",
    "screen",
  );
  daemon.run(
    "exec",
    "screen",
    "--",
    "sh",
    "-c",
    'mkdir -p /tmp/site && printf %s "$1" >/tmp/site/index.html',
    "site",
    site,
  );
  daemon.run(
    ..."exec -d screen -- python3 -m http.server 8000 --directory /tmp/site".split(
      " ",
    ),
  );
  chrome = await browser();
  const context = await chrome.newContext({
    viewport: { width: 1280, height: 800 },
  });
  page = await context.newPage();
  page.setDefaultTimeout(90_000);
  page.on("pageerror", (e) => faults.push(String(e)));
});

after(async () => {
  await chrome?.close();
  await daemon?.close();
});

test("a browser inside is seen to draw", only, async () => {
  const link = daemon.run("console", "--no-browser");
  base = link.slice(0, link.indexOf("#"));
  await page.goto(link);
  await page.getByRole("heading", { name: "Overview" }).waitFor();
  await page.goto(base + "#/sandboxes/screen/desktop");
  await page.getByText("You watch.").waitFor();
  daemon.run(
    ..."exec -d screen -- chromium --kiosk http://localhost:8000/".split(" "),
  );
  await shows("red");
});

test("who watches does not act, and who takes control does", only, async () => {
  const canvas = page.locator(".vnc canvas");
  await canvas.click();
  await page.keyboard.press("b");
  await button("Take control").click();
  await page.getByText("You control the desktop").waitFor();
  await shows("red");
  await canvas.click();
  await shows("green"); // the first click
  await page.keyboard.press("b");
  await shows("blue");
  // What the daemon enforces does not depend on the page.
  daemon.run("computer", "copy", "screen", "a secret");
  assert.equal(daemon.run("computer", "clipboard", "screen"), "a secret");
});

test("the desktop is recorded, and the recording is played", only, async () => {
  await button("Record").click();
  await button("Stop recording").waitFor();
  await page.locator(".vnc canvas").click();
  await shows("yellow");
  // The recording shows it, too, as soon as it has something.
  await page.waitForTimeout(2000);
  await button("Stop recording").click();
  await button("Record").waitFor();
  await page.goto(base + "#/recordings");
  // The newest; the state directory may have others.
  const play = page.getByRole("button", { name: /^Play rec-/ }).first();
  const id = (await play.getAttribute("aria-label")).slice("Play ".length);
  await play.click();
  await page.locator("video.film").waitFor();
  await page.waitForFunction(
    () => document.querySelector("video.film").readyState >= 2,
  );
  await page.evaluate(() => {
    const v = document.querySelector("video.film");
    v.pause();
    v.currentTime = v.duration - 0.2;
  });
  await shows("yellow", page, "video.film");
  await page.screenshot({ path: join(shots, "desktop-played.png") });
  daemon.run("record", "rm", id);
});

test("a link shows the desktop, until it is revoked", only, async () => {
  for (const [look, size, colorScheme] of [
    ["light", { width: 1280, height: 800 }, "light"],
    ["dark", { width: 1280, height: 800 }, "dark"],
    ["narrow", { width: 400, height: 800 }, "light"],
  ]) {
    await page.setViewportSize(size);
    await page.emulateMedia({ colorScheme });
    await page.goto(base + "#/sandboxes/screen/desktop");
    await page.reload();
    await shows("yellow");
    await page.screenshot({ path: join(shots, `desktop-${look}.png`) });
    const context = await chrome.newContext({ viewport: size, colorScheme });
    const guest = await context.newPage();
    guest.setDefaultTimeout(90_000);
    guest.on("pageerror", (e) => faults.push(String(e)));
    await guest.goto(daemon.run("desktop", "--no-browser", "screen"));
    await shows("yellow", guest);
    await guest.getByText("You watch.").waitFor();
    await button("Take control", guest).click();
    await guest.getByText("You are in control").waitFor();
    await shows("yellow", guest);
    await guest.screenshot({
      path: join(shots, `desktop-linked-${look}.png`),
    });
    for (const p of [page, guest]) {
      const wide = await p.evaluate(
        () => document.documentElement.scrollWidth - innerWidth,
      );
      assert.ok(wide <= 0, `${look}: ${wide} pixels wider than the screen`);
    }
    daemon.run("stream", "rm", "--all", "screen");
    for (const [p, name] of [
      [guest, "Only watch"],
      [page, "Take control"],
    ]) {
      await p.getByRole("alert").getByText("was revoked").waitFor();
      const off = button(name, p);
      assert.equal(await off.getAttribute("aria-disabled"), "true");
      assert.match(await off.getAttribute("title"), /was revoked/);
    }
    await guest.screenshot({
      path: join(shots, `desktop-revoked-${look}.png`),
    });
    await button("Connect again").click();
    await shows("yellow");
    await context.close();
  }
  assert.deepEqual(faults, []);
});
