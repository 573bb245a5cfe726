// Measures the medians of E2B's SDK for docs/BENCHMARKS.md: with Atoll,
// and alternately, in the same run, with a server that does nothing.
import { fork } from 'node:child_process'
import { Sandbox, version } from './harness.mjs'

const rounds = Number(process.env.E2B_BENCH_ROUNDS ?? 20)
const median = (a) => a.sort((x, y) => x - y)[Math.floor(a.length / 2)]
const took = async (fn) => { const t = performance.now(); await fn(); return performance.now() - t }
const data = new Blob([Buffer.alloc(100_000_000, 'x')])

const nothing = fork(new URL('./ceiling.mjs', import.meta.url))
const url = `http://127.0.0.1:${await new Promise((done) => nothing.once('message', done))}`
const sides = { atoll: {}, ceiling: { apiUrl: url, sandboxUrl: url, apiKey: 'e2b_0' } }
const ms = { atoll: {}, ceiling: {} }
const note = (side, what, time) => (ms[side][what] ??= []).push(time)

const warm = {}
for (const side in sides) {
  warm[side] = await Sandbox.create(sides[side])
  await warm[side].commands.run('true')
}
for (let i = 0; i < rounds; i++) {
  for (const side in sides) {
    let sbx
    const created = await took(async () => { sbx = await Sandbox.create(sides[side]) })
    const first = await took(() => sbx.commands.run('echo hello'))
    note(side, 'create', created)
    note(side, 'createAndRun', created + first)
    await sbx.kill()
    // Let the pool refill between two uses.
    await new Promise((done) => setTimeout(done, Number(process.env.E2B_BENCH_PAUSE ?? 300)))
  }
}
for (let i = 0; i < rounds; i++) {
  for (const side in sides) {
    for (let n = 0; n < 5; n++) note(side, 'run', await took(() => warm[side].commands.run('true')))
    note(side, 'info', await took(() => warm[side].getInfo()))
  }
}
for (let i = 0; i < rounds / 4; i++) {
  for (const side in sides) {
    note(side, 'up', await took(() => warm[side].files.write('/home/user/large', data)))
    note(side, 'down', await took(() => warm[side].files.read('/home/user/large', { format: 'bytes' })))
  }
}
for (const side in sides) {
  await warm[side].kill()
  const of = Object.fromEntries(Object.entries(ms[side]).map(([what, all]) => [what, median(all)]))
  const rate = (time) => Math.round(100_000 / time)
  const { create, createAndRun, run, info, up, down } = of
  const round = (v) => +v.toFixed(1)
  console.log(JSON.stringify({ version, side, create: round(create), createAndRun: round(createAndRun), run: round(run), info: round(info), upMBs: rate(up), downMBs: rate(down) }))
}
nothing.kill()
process.exit(0)
