// Measures what docs/BENCHMARKS.md tells of E2B's SDK, as medians.
import { Sandbox, version } from './harness.mjs'

const median = (a) => a.sort((x, y) => x - y)[Math.floor(a.length / 2)]
async function times(n, fn) {
  const all = []
  for (let i = 0; i < n; i++) all.push(await fn())
  return median(all)
}
const took = async (fn) => { const t = performance.now(); await fn(); return performance.now() - t }

const warm = await Sandbox.create()
const fresh = await times(20, async () => {
  let sbx
  const ms = await took(async () => {
    sbx = await Sandbox.create()
    await sbx.commands.run('echo hello')
  })
  await sbx.kill()
  return ms
})
const run = await times(100, () => took(() => warm.commands.run('true')))
const info = await times(50, () => took(() => warm.getInfo()))
const data = new Blob([Buffer.alloc(100_000_000, 'x')])
const up = await times(5, () => took(() => warm.files.write('/home/user/large', data)))
const down = await times(5, () => took(() => warm.files.read('/home/user/large', { format: 'bytes' })))
await warm.kill()
const rate = (ms) => Math.round(100_000 / ms)
console.log(JSON.stringify({ version, createAndRun: +fresh.toFixed(1), run: +run.toFixed(1), info: +info.toFixed(1), upMBs: rate(up), downMBs: rate(down) }))
