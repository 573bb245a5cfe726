// Simulates a wildcard DNS entry: all names below E2B_TEST_NAME resolve to
// this machine.
const dns = require('node:dns')
const name = process.env.E2B_TEST_NAME
const here = (host) => name && (host === name || host.endsWith('.' + name))
const { lookup } = dns
dns.lookup = (host, options, callback) => {
  if (!here(host)) return lookup(host, options, callback)
  const done = callback ?? options
  const all = typeof options === 'object' && options.all
  process.nextTick(() => (all ? done(null, [{ address: '127.0.0.1', family: 4 }]) : done(null, '127.0.0.1', 4)))
}
